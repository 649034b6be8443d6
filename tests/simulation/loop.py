"""A seeded event loop with virtual time, in which several processes run.

Every callback belongs to the process in whose context it was scheduled. Within a process, callbacks run in order, as
asyncio promises; the seed chooses which process runs next. A process that is killed never runs again; one that is
paused runs nothing while time goes on. There are no sockets and no threads.
"""

import asyncio
import heapq
import random
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from types import SimpleNamespace
from typing import Any

from turnwire.core import ids
from turnwire.core.log import codec, turn_log
from turnwire.core.run import runner, worker
from turnwire.server.streams import stream
from turnwire.stores import rules

_START = 1_000.0
_EPOCH_NS = 1_700_000_000_000_000_000
_MAX_STEPS = 400_000


class Process:
    """A simulated process, or the world outside of all processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.clock_skew = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.context = copy_context()
        self.context.run(_process.set, self)


_process: ContextVar[Process] = ContextVar("simulated_process")


class StuckError(Exception):
    """Nothing can happen any more, or too much has happened."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks of all processes; its clock jumps to the next timer when no callback is ready."""

    def __init__(self, chooser: random.Random) -> None:
        self.now = _START
        self.errors: list[str] = []
        self.steps = 0
        self.outside = Process("outside")
        self._chooser = chooser
        self._processes = [self.outside]
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._sequence = 0
        self._tasks: list[asyncio.Task[Any]] = []

    def add_process(self, name: str) -> Process:
        process = Process(name)
        self._processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        process.is_alive = False
        process.ready.clear()
        self._processes.remove(process)

    # What asyncio calls

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        return task

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(_process, self.outside)
        if process.is_alive:
            process.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle, context.get(_process, self.outside)))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and "never retrieved" not in context.get("message", ""):
            self.errors.append(f"{context.get('message')}: {error!r}")

    # Running

    def run(self, main: Coroutine[Any, Any, Any]) -> None:
        """Run until `main`, which is outside of all processes, has finished. Raises StuckError."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        events._set_running_loop(self)
        try:
            finished = self.outside.context.run(self.create_task, main)
            while not finished.done():
                self._step()
            finished.result()
        finally:
            self._bury()
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _step(self) -> None:
        timers, now = self._timers, self.now
        while timers and (timers[0][0] <= now or timers[0][2].cancelled()):
            _, _, handle, process = heapq.heappop(timers)
            if process.is_alive and not handle.cancelled():
                process.ready.append(handle)
        runnable = [process for process in self._processes if process.ready and not process.is_paused]
        if not runnable:
            if not timers:
                raise StuckError("nothing is left to do")
            self.now = timers[0][0]
            return
        process = runnable[0] if len(runnable) == 1 else self._chooser.choice(runnable)
        handle = process.ready.popleft()
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise StuckError(f"{_MAX_STEPS} steps")
        if not handle.cancelled():
            handle._run()

    def _close_generator(self, generator: Any) -> None:
        process = _process.get(None)
        if process is not None and process.is_alive:
            self.create_task(generator.aclose())

    def _bury(self) -> None:
        """Close every coroutine that has not finished, so that none is collected in a later simulation."""
        for process in self._processes:
            process.is_alive = False
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
                with suppress(BaseException):
                    task.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess]
            elif not task.cancelled():
                task.exception()
        self._timers.clear()


@contextmanager
def simulated_clock(loop: SimulatedLoop, seed: int) -> Generator[None]:
    """Let the product read the time and its random numbers from the simulation."""

    def time_ns() -> int:
        skew = _process.get(loop.outside).clock_skew
        return _EPOCH_NS + int((loop.now + skew) * 1e9)

    def monotonic() -> float:
        return loop.now

    chooser = random.Random(seed)
    clock = SimpleNamespace(time_ns=time_ns, monotonic=monotonic, time=lambda: time_ns() / 1e9)
    patches: list[tuple[Any, str, Any]] = [
        (codec, "time", clock),
        (ids, "time", clock),
        (ids, "secrets", SimpleNamespace(randbits=chooser.getrandbits)),
        (ids, "_last", 0),
        (turn_log, "time_ns", time_ns),
        (rules, "time", clock),
        (runner, "time", clock),
        (stream, "monotonic", monotonic),
        (worker, "monotonic", monotonic),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in patches]
    state = random.getstate()
    random.seed(seed)
    try:
        for module, name, value in patches:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)
        random.setstate(state)
