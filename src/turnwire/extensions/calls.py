"""Calls to an extension, which may raise, hang or refuse to be cancelled, and the limits of these calls."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, TypeVar

from msgspec import Struct

T = TypeVar("T")
_CANCEL_GRACE_SECONDS = 0.5

# A call that timed out may go on for a while; its task must not be garbage-collected until then.
_abandoned: set[asyncio.Task[Any]] = set()


class ExtensionLimits(Struct, frozen=True, kw_only=True):
    """The limits of extensions and conversations. Times are in seconds.

    `session_timeout` and `extension_context` are settings. The others protect the server from an extension that hangs,
    and are long enough for one that does not; no operator knows a better value for all extensions at once.
    """

    session_timeout: float = 1800
    """The silence after which a message starts a new session; 0 for never."""
    extension_timeout: float = 10
    """The limit of initialize, start, stop, destroy, health_check and get_context, which do no long work."""
    channel_timeout: float = 30
    """The limit of one call to a channel or a subscriber: one request to a chat service, with its own retries."""
    health_interval: float = 30
    """The interval of health checks, which is that of most monitoring systems."""
    restart_delay: float = 1
    """The first delay before a failed service, subscriber or delivery is retried; it doubles each time."""
    delivery_attempts: int = 5
    extension_context: Literal["all", "extensions"] = "all"
    """The turns that context providers are asked for: all, or those that extensions start."""
    closing_patience: float = 5
    """The grace period for the delivery of complete answers while the server shuts down."""


async def call(limit: float, method: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call the method. Raises what it raises, and TimeoutError when it takes longer than `limit` seconds.

    It runs in a task of its own, so that a call which ignores its cancellation can be abandoned.
    """
    task = asyncio.create_task(_run(method, args))
    try:
        done, _ = await asyncio.wait({task}, timeout=limit)
    except asyncio.CancelledError:
        _abandon(task)
        raise
    if not done:
        _abandon(task)
        # A grace period, so that its clean-up does not overlap with the next call.
        await asyncio.wait({task}, timeout=min(limit, _CANCEL_GRACE_SECONDS))
        raise TimeoutError(f"it took longer than {limit:g} s")
    return task.result()


async def _run(method: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    try:
        return await method(*args)
    except SystemExit as error:
        # Passed on, it would end the whole process.
        raise RuntimeError(f"tried to exit with {error.code!r}") from error


def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _abandoned.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


class Background:
    """Tasks that run on their own until they are cancelled together."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def close(self, patience: float) -> None:
        await cancel_all(self.tasks, patience)


async def cancel_all(tasks: Iterable[asyncio.Task[Any] | None], patience: float) -> None:
    """Cancel the tasks, and wait for their ends within the grace period."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=patience)


def reason(error: BaseException) -> str:
    """Return an error in one line, for the message of a state."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
