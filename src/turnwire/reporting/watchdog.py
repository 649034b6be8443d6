"""A watchdog for code that blocks the event loop, such as `time.sleep` in an async tool.

It stalls the streams of all turns, and for long enough costs the worker its lease. A thread notices that the loop does
not answer, and logs the turn, file and line that it is at.
"""

import asyncio
import logging
import sys
import sysconfig
import threading
from pathlib import Path
from time import monotonic
from types import FrameType

from turnwire.core import metrics
from turnwire.core.emit import turn_of_task

logger = logging.getLogger("turnwire.server")

_LIMIT_SECONDS = 1.0
_BEATS_PER_LIMIT = 4
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OWN = str(Path(__file__).parents[1])


class LoopWatchdog:
    """Logs a block of the running event loop that is longer than `limit` seconds, once, while it lasts."""

    def __init__(self, limit: float = _LIMIT_SECONDS) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._last_beat = monotonic()
        self._is_blocked = False
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._watch, name="turnwire-watchdog", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now = monotonic()
        if self._is_blocked:
            self._is_blocked = False
            metrics.LOOP_BLOCKED.add()
            logger.warning("the event loop runs again after %.1f s", now - self._last_beat)
        self._last_beat = now
        self._timer = self._loop.call_later(self._limit / _BEATS_PER_LIMIT, self._beat)

    def _watch(self) -> None:
        # Counted in turns of this thread: while the whole process does not run, nothing blocks the loop.
        seen, missed = self._last_beat, 0
        while not self._stopped.wait(self._limit / _BEATS_PER_LIMIT):
            if self._last_beat != seen:
                seen, missed = self._last_beat, 0
                continue
            missed += 1
            if missed >= _BEATS_PER_LIMIT and not self._is_blocked:
                self._is_blocked = True
                self._report(monotonic() - seen)

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        task = asyncio.current_task(self._loop)
        if frame is None or task is None:
            return
        turn = turn_of_task(task)
        frame = _application_frame(frame)
        logger.warning(
            "the event loop has been blocked for %.1f s at %s:%d (%s), by %s; run blocking code in a thread, "
            "for example by a tool that is not async",
            seconds,
            frame.f_code.co_filename,
            frame.f_lineno,
            frame.f_code.co_name,
            f"turn {turn.turn_id}" if turn else f"the task {task.get_name()!r}",
        )


def _application_frame(innermost: FrameType) -> FrameType:
    """Return the innermost frame of the application's own code, or the innermost one if there is none."""
    frame: FrameType | None = innermost
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, _OWN, "<frozen")):
            return frame
        frame = frame.f_back
    return innermost
