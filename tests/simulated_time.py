"""An event loop whose time is simulated: when nothing is left to do but wait, its clock jumps to the next timer.

Thirty seconds of waiting take no time at all, and how long the machine computes does not count, so that what a test
finds does not depend on how fast or how loaded the machine is. Sockets are real. Work in threads counts as work if it
was started with `run_in_executor` or `to_thread`: the clock stands still until it is done.
"""

import asyncio
import selectors
from collections.abc import Callable
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

    def _thread_is_done(self, _: "asyncio.Future[Any]") -> None:
        self._timed.threads_at_work -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        # It waits for a thread that joins the others.
        self._timed.threads_at_work += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._timed.threads_at_work -= 1
