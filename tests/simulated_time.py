"""An event loop whose time is simulated: when nothing is left to do but wait, its clock jumps to the next timer.

Thirty seconds of waiting take no time at all, and how long the machine computes does not count, so that what a test
finds does not depend on how fast or how loaded the machine is. Work that the loop gives to a pool of threads counts as
work: the clock stands still until it is done. Sockets and other processes are real: what is on its way through a socket
is not known to the clock, so a test over sockets must not depend on a few seconds of this time.
"""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

_START = 1000.0
# The kernel may deliver what was sent over the loopback interface a moment later.
_DELIVERY_SECONDS = 0.001


class _Selector(selectors.DefaultSelector):
    """Waits for sockets and threads in real time, and for timers in simulated time."""

    now = _START
    threads_at_work = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.threads_at_work:
            return super().select(None)
        if ready := super().select(_DELIVERY_SECONDS):
            return ready
        self.now += timeout
        return []


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._timed = _Selector()
        super().__init__(self._timed)

    def time(self) -> float:
        return self._timed.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        future = super().run_in_executor(executor, func, *args)
        self._timed.threads_at_work += 1
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _: "asyncio.Future[Any] | Future[Any]") -> None:
        self._timed.threads_at_work -= 1

    def count_until_done(self, work: "Future[Any]") -> None:
        """Let the clock stand still until a call in a thread has returned, though nobody awaits it."""
        self._timed.threads_at_work += 1

        def wake(_: "Future[Any]") -> None:
            with suppress(RuntimeError):  # The loop may be closed before its threads have finished.
                self.call_soon_threadsafe(self._thread_is_done, work)

        work.add_done_callback(wake)

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        # It waits for a thread that joins the others.
        self._timed.threads_at_work += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._timed.threads_at_work -= 1


_submit = ThreadPoolExecutor.submit


def _submit_and_count(
    pool: ThreadPoolExecutor, call: Callable[..., Any], /, *args: Any, **options: Any
) -> "Future[Any]":
    work = _submit(pool, call, *args, **options)
    with suppress(RuntimeError):  # No loop runs in this thread.
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedTimeLoop):
            loop.count_until_done(work)
    return work


ThreadPoolExecutor.submit = _submit_and_count
