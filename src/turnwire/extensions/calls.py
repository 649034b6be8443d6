"""Calling an extension: it may raise, hang or refuse to be cancelled, and costs its caller no more than a limit."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")
_LETTING_GO_SECONDS = 0.5

# A call that was given up on may go on for a while; somebody must hold its task until then.
_given_up: set[asyncio.Task[Any]] = set()


async def call(limit: float, method: Callable[..., Awaitable[T]], *args: Any) -> T:
    """What the method returns. Raises what it raises, and TimeoutError when it takes longer than `limit` seconds.

    It runs in a task of its own, so that one which does not let go when it is cancelled can be left behind.
    """
    task = asyncio.create_task(_answer(method, args))
    try:
        done, _ = await asyncio.wait({task}, timeout=limit)
    except asyncio.CancelledError:
        _give_up(task)
        raise
    if not done:
        _give_up(task)
        # It gets a moment, so that its cleaning up does not meet the next call.
        await asyncio.wait({task}, timeout=min(limit, _LETTING_GO_SECONDS))
        raise TimeoutError(f"took longer than {limit:g} s")
    return task.result()


async def _answer(method: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    try:
        return await method(*args)
    except SystemExit as error:
        # Let through, it would end the whole process.
        raise RuntimeError(f"tried to exit with {error.code!r}") from error


def _give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _given_up.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _given_up.discard(task)
    if not task.cancelled():
        task.exception()


class Background:
    """Tasks that nobody waits for, until they are ended together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, patience: float) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)


def reason(error: BaseException) -> str:
    """An error in one line, for a state's message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# How long extensions may take, and how long a conversation lasts. Times are in seconds.


class KernelLimits(Struct, frozen=True, kw_only=True):
    session_timeout: float = 1800
    """A message after so long a silence begins a new session; 0 for never."""
    extension_timeout: float = 10
    """For initialize, start, stop, destroy, health_check, get_context."""
    channel_timeout: float = 30
    """For a channel to show one thing, and for a subscriber to take one event."""
    health_interval: float = 30
    restart_delay: float = 1
    """Before a service that failed, a subscriber or a delivery is tried again; it doubles each time."""
    delivery_attempts: int = 5
    closing_patience: float = 5
    """How long answers that are complete may take to be delivered while the server goes down."""
