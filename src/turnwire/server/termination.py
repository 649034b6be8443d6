"""What SIGTERM and SIGINT begin: first the balancer is told, then readers and turns, and then the web server."""

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Termination:
    """Takes both signals before whoever handled them so far.

    The first one calls `leave`. After the delay, which is asked for then, or with the second one, `drain` is called,
    and the signal goes on to its earlier handler. To be made on the event loop.
    """

    def __init__(self, leave: Callable[[], None], drain: Callable[[], None], delay: Callable[[], float]) -> None:
        self._leave = leave
        self._drain = drain
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._earlier: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: asyncio.TimerHandle | None = None
        self._is_told = False
        self._is_over = False

    def watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            earlier = signal.getsignal(number)
            if callable(earlier):  # With no handler there is no server to shut down gracefully.
                self._earlier[number] = earlier
                signal.signal(number, self._hear)

    def unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, earlier)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        is_first, self._is_told = not self._is_told, True
        self._loop.call_soon_threadsafe(self._leave)
        if is_first and self._delay() > 0:
            self._loop.call_soon_threadsafe(self._wait, number)
        else:
            self._go_on(number, frame)

    def _wait(self, number: int) -> None:
        if not self._is_over:
            self._waiting = self._loop.call_later(self._delay(), self._go_on, number, None)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.call_soon_threadsafe(self._drain)
        self._earlier[number](number, frame)
