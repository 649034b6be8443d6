"""Threads for tools that block.

SDKs run a tool that is not async in the event loop's default executor, which has a few threads for the whole process.
`TurnExecutor` replaces it: what a turn runs goes to the threads of `TOOL_THREADS`, where one turn can take only some,
and a hanging tool none of the store's.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from turnwire.core.emit import current_turn

_MAX_THREADS = 256
_MAX_THREADS_PER_TURN = 8


class ToolThreads:
    """A pool in which each turn has at most `per_turn` threads at a time; its other calls wait."""

    def __init__(self, threads: int = _MAX_THREADS, per_turn: int = _MAX_THREADS_PER_TURN) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="turnwire-tool")
        self._per_turn = per_turn
        self._lock = Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        turn = current_turn()
        turn_id = turn.turn_id if turn else ""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    _complete(future, lambda: function(*args, **options))
            finally:
                self._run_next(turn_id)

        with self._lock:
            if turn_id and self._running[turn_id] >= self._per_turn:
                self._waiting.setdefault(turn_id, deque()).append(run)
                return future
            self._running[turn_id] += 1
        self._pool.submit(run)
        return future

    def _run_next(self, turn_id: str) -> None:
        with self._lock:
            waiting = self._waiting.get(turn_id)
            run = waiting.popleft() if waiting else None
            if not waiting:
                self._waiting.pop(turn_id, None)
            if run is None:
                self._running[turn_id] -= 1
                if not self._running[turn_id]:
                    del self._running[turn_id]
        if run is not None:
            self._pool.submit(run)


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


TOOL_THREADS = ToolThreads()


class TurnExecutor(ThreadPoolExecutor):
    """A default executor of an event loop that leaves the calls of turns to `TOOL_THREADS`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if current_turn() is None:
            return super().submit(fn, *args, **kwargs)
        return TOOL_THREADS.submit(fn, *args, **kwargs)


def install_executor() -> None:
    """Make `TurnExecutor` the default of the running event loop, unless the application has chosen another one."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "_default_executor", None) is None:
        loop.set_default_executor(TurnExecutor(thread_name_prefix="turnwire"))
