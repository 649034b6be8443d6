"""Threads for tools and agents that block.

SDKs run a tool that is not async in the event loop's default executor, which has a few threads for the whole process.
`TurnExecutor` replaces it: the calls of turns run in `TOOL_THREADS`, which limits the threads of each turn and of each
principal. So a tool that hangs never takes a thread from the store.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from turnwire.core.log.scope import current_turn

_MAX_THREADS = 256
_MAX_THREADS_PER_TURN = 8
_MAX_THREADS_PER_PRINCIPAL = _MAX_THREADS // 2


class _WaitingCall(NamedTuple):
    run: Callable[[], None]
    turn_id: str
    principal: str


class ToolThreads(Executor):
    """A pool in which each turn, and each principal, has only so many threads at a time; their other calls wait."""

    def __init__(self, per_turn: int = _MAX_THREADS_PER_TURN, per_principal: int = _MAX_THREADS_PER_PRINCIPAL) -> None:
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="turnwire-tool")
        self._per_turn = per_turn
        self._per_principal = per_principal
        self._lock = Lock()
        self._of_turns: Counter[str] = Counter()
        self._of_principals: Counter[str] = Counter()
        self._waiting: dict[str, deque[_WaitingCall]] = {}
        """The waiting calls of each principal."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                _complete(future, lambda: fn(*args, **kwargs))

        turn = current_turn()
        if turn is None:
            self._pool.submit(run)
        else:
            call = _WaitingCall(run, turn.turn_id, turn.principal)
            with self._lock:
                self._waiting.setdefault(turn.principal, deque()).append(call)
            self._start_next(turn.principal)
        return future

    def _start_next(self, principal: str) -> None:
        """Start the first waiting call of a principal that may run."""
        with self._lock:
            if self._of_principals[principal] >= self._per_principal:
                return
            waiting = self._waiting.get(principal, ())
            call = next((call for call in waiting if self._of_turns[call.turn_id] < self._per_turn), None)
            if call is None:
                return
            self._waiting[principal].remove(call)
            if not self._waiting[principal]:
                del self._waiting[principal]
            self._of_turns[call.turn_id] += 1
            self._of_principals[principal] += 1
        self._pool.submit(self._run, call)

    def _run(self, call: _WaitingCall) -> None:
        try:
            call.run()
        finally:
            with self._lock:
                for counter, key in ((self._of_turns, call.turn_id), (self._of_principals, call.principal)):
                    counter[key] -= 1
                    if not counter[key]:
                        del counter[key]
            self._start_next(call.principal)


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


TOOL_THREADS = ToolThreads()


async def call_in_thread(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Call a function that may block, in a thread of the current turn and with the current context."""
    return await _run(partial(copy_context().run, function, *args, **options))


async def iterate_in_thread(items: Iterator[Any]) -> AsyncGenerator[Any]:
    """Yield the items of an iterator that may block. A generator is closed at the end, in a thread too."""
    # One context for all of it, as in a thread of its own, and one call at a time.
    context, lock, end = copy_context(), Lock(), object()

    def call(function: Callable[..., Any], *args: Any) -> Any:
        with lock:
            return context.run(function, *args)

    try:
        while (item := await _run(partial(call, next, items, end))) is not end:
            yield item
    finally:
        if isinstance(items, Generator):
            # Not waited for: a call that blocks must not keep a turn that was stopped from ending.
            TOOL_THREADS.submit(call, items.close)


async def _run(function: Callable[[], Any]) -> Any:
    def call() -> Any:
        try:
            return function()
        except StopIteration as error:
            # A future cannot hold StopIteration, and awaiting it would never end.
            raise RuntimeError("the code in the thread raised StopIteration") from error

    return await asyncio.get_running_loop().run_in_executor(TOOL_THREADS, call)


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
