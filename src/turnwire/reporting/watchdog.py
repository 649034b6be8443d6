"""A watchdog for code that blocks the event loop, such as `time.sleep` in an async tool.

Such code stalls the streams of all turns; if it blocks for long enough, the worker loses its lease. A thread notices
that the loop does not answer, and logs the turn, file and line that the loop is at. The loop and the thread wake only
four times a second, so that every server can afford the watchdog.
"""

import asyncio
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic, thread_time
from types import FrameType

from msgspec import Struct

from turnwire.core import metrics
from turnwire.core.log.emit import turn_of_task

logger = logging.getLogger("turnwire.server")

_LIMIT_SECONDS = 1.0
_BEATS_PER_LIMIT = 4
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OWN = str(Path(__file__).parents[1])


class LoopBlock(Struct, frozen=True):
    """A block of the event loop that is over. `turn_id` and `location` are empty if they could not be found out."""

    seconds: float
    turn_id: str = ""
    location: str = ""


class LoopWatchdog:
    """Logs a block of the running event loop that is longer than `limit` seconds, once, while it lasts.

    `on_block` is called on the loop when the block is over.
    """

    def __init__(
        self, limit: float = _LIMIT_SECONDS, on_block: Callable[[LoopBlock], None] = lambda block: None
    ) -> None:
        self._limit = limit
        self._on_block = on_block
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.last_beat = monotonic()
        self._cpu_seconds = thread_time()
        # The block under way, as the watching thread has found it.
        self._blocked_by: LoopBlock | None = None
        self.stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.thread = threading.Thread(target=self.watch, name="turnwire-watchdog", daemon=True)

    def start(self) -> None:
        self._beat()
        self.thread.start()

    def stop(self) -> None:
        self.stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now, cpu_seconds = monotonic(), thread_time()
        block, self._blocked_by = self._blocked_by, None
        if block is not None:
            logger.warning("the event loop runs again after %.1f s", now - self.last_beat)
        elif cpu_seconds - self._cpu_seconds > self._limit:
            # The CPU time is the proof: a process that did not run at all has used none.
            block = LoopBlock(0)
            logger.warning(
                "the event loop was blocked for %.1f s by a single call that let no thread run, such as a regular "
                "expression or a large JSON text, so its turn is not known; run such code in another process",
                now - self.last_beat,
            )
        if block is not None:
            metrics.LOOP_BLOCKED.add()
            # A block that ends while it is being reported is seen at the next beat.
            seconds = max(now - self.last_beat, block.seconds)
            self._on_block(LoopBlock(seconds, block.turn_id, block.location))
        self.last_beat, self._cpu_seconds = now, cpu_seconds
        self._timer = self._loop.call_later(self._limit / _BEATS_PER_LIMIT, self._beat)

    def watch(self) -> None:
        # Counted in wake-ups of this thread: while the whole process is paused, no code blocks the loop.
        seen, missed = self.last_beat, 0
        while not self.stopped.wait(self._limit / _BEATS_PER_LIMIT):
            if self.last_beat != seen:
                seen, missed = self.last_beat, 0
                continue
            missed += 1
            if missed >= _BEATS_PER_LIMIT and self._blocked_by is None:
                self._blocked_by = self._report(monotonic() - seen)

    def _report(self, seconds: float) -> LoopBlock:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        task = asyncio.current_task(self._loop)
        if frame is None:
            return LoopBlock(seconds)
        turn = turn_of_task(task) if task is not None else None
        frame = _application_frame(frame)
        location = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        culprit = f"turn {turn.turn_id}" if turn else f"the task {task.get_name()!r}" if task else "a callback"
        logger.warning(
            "the event loop has been blocked for %.1f s at %s (%s), by %s; run blocking code in a thread, "
            "for example by a tool that is not async",
            seconds,
            location,
            frame.f_code.co_name,
            culprit,
        )
        return LoopBlock(seconds, turn.turn_id if turn else "", location)


def _application_frame(innermost: FrameType) -> FrameType:
    """Return the innermost frame of the application's own code, or the innermost one if there is none."""
    frame: FrameType | None = innermost
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, _OWN, "<frozen")):
            return frame
        frame = frame.f_back
    return innermost
