"""The client for programs that are not async: the same client, on an event loop in a thread of its own.

So it also works where a loop is already running, as in a notebook, and may be used from several threads.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from turnwire.client.async_client import AsyncClient, AsyncTurnHandle
from turnwire.client.values import DEFAULT_URL, ReconnectLimits, ServerAddress

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwire-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result. An interrupt, such as Ctrl+C, cancels it.

        Raises RuntimeError if the loop is stopped, also by another thread meanwhile.
        """
        with self._lock:
            if self.is_stopped:
                work.close()
                raise RuntimeError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("the client is closed") from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, values: AsyncGenerator[T]) -> Generator[T]:
        """Yield the values of an async generator, and close it when the reader leaves."""

        async def advance() -> tuple[T] | None:
            async for value in values:
                return (value,)
            return None

        while (value := self.run(advance())) is not None:
            try:
                yield value[0]
            except BaseException:  # The reader leaves. An error of `advance` has ended the generator already.
                if not self.is_stopped:
                    self.run(values.aclose())
                raise

    def stop(self, clean_up: Callable[[], Awaitable[None]]) -> None:
        """Cancel all that runs on the loop, clean up, and end the thread. A second call does nothing."""
        with self._lock:
            if self.is_stopped:
                return
            self.is_stopped = True
            future = asyncio.run_coroutine_threadsafe(self._end(clean_up), self._loop)
        future.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self, clean_up: Callable[[], Awaitable[None]]) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await clean_up()
        await self._loop.shutdown_asyncgens()


class _Blocking(Generic[A]):
    """An object whose methods run those of an async object on a thread's loop, and wait for their results."""

    def __init__(self, thread: LoopThread, target: A) -> None:
        self.thread = thread
        self.target = target


def _wait(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Blocking[A], P], T]:
    """Return a method that waits for the result of an async one."""

    @wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.thread.run(method(self.target, *args, **kwargs))

    return call


def _wait_for_turn(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, AsyncTurnHandle]],
) -> Callable[Concatenate[_Blocking[A], P], "TurnHandle"]:
    """Return a method that waits for the turn of an async one."""

    @wraps(method)
    def call(self: _Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> "TurnHandle":
        return TurnHandle(self.thread, self.thread.run(method(self.target, *args, **kwargs)))

    return call


def _iterate(method: Callable[[A], AsyncGenerator[T]]) -> Callable[[_Blocking[A]], Generator[T]]:
    """Return a method that waits for each value of an async generator."""

    @wraps(method)
    def call(self: _Blocking[A], /) -> Generator[T]:
        return self.thread.iterate(method(self.target))

    return call


class Client(_Blocking[AsyncClient]):
    """A client of one server: the methods of `AsyncClient`, which block until they have their result."""

    def __init__(
        self,
        server: str | ServerAddress | Callable[[], ServerAddress] = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout: float = 30,
        limits: ReconnectLimits | None = None,
    ) -> None:
        super().__init__(LoopThread(), AsyncClient(server, key=key, timeout=timeout, limits=limits))

    @property
    def name(self) -> str:
        """Return the name of the server for a person to read."""
        return self.target.name

    start = _wait_for_turn(AsyncClient.start)
    enqueue = _wait_for_turn(AsyncClient.enqueue)
    fork = _wait_for_turn(AsyncClient.fork)
    turns = _wait(AsyncClient.turns)
    snapshot = _wait(AsyncClient.snapshot)
    cancel = _wait(AsyncClient.cancel)
    decide = _wait(AsyncClient.decide)
    reply = _wait(AsyncClient.reply)
    send_tool_result = _wait(AsyncClient.send_tool_result)
    create_session = _wait(AsyncClient.create_session)
    sessions = _wait(AsyncClient.sessions)
    session = _wait(AsyncClient.session)
    request = _wait(AsyncClient.request)
    download = _wait(AsyncClient.download)

    def turn(self, turn_id: str, *, after: str | None = None) -> "TurnHandle":
        """Return a handle for an existing turn; `after` is the id of the last event that you have."""
        return TurnHandle(self.thread, self.target.turn(turn_id, after=after))

    def close(self) -> None:
        """Close all connections and the thread. Turns that were started go on; calls in other threads fail."""
        self.thread.stop(self.target.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TurnHandle(_Blocking[AsyncTurnHandle]):
    """One turn: the methods of `AsyncTurnHandle`, which block until they have their result."""

    @property
    def id(self) -> str:
        return self.target.id

    @property
    def session_id(self) -> str | None:
        """Return the id of the turn's session; None if the server has not named it yet."""
        return self.target.session_id

    @property
    def last_event_id(self) -> str | None:
        """Return the id of the last event that was read, to continue after it in another process."""
        return self.target.last_event_id

    @property
    def position(self) -> int:
        """Return the position of the last event that was read."""
        return self.target.position

    @property
    def text(self) -> str:
        """Return the answer as far as its events were read, without the parts that a restart has made void."""
        return self.target.text

    events = _iterate(AsyncTurnHandle.events)
    updates = _iterate(AsyncTurnHandle.updates)
    result = _wait(AsyncTurnHandle.result)
    snapshot = _wait(AsyncTurnHandle.snapshot)
    cancel = _wait(AsyncTurnHandle.cancel)
    decide = _wait(AsyncTurnHandle.decide)
    reply = _wait(AsyncTurnHandle.reply)
    send_tool_result = _wait(AsyncTurnHandle.send_tool_result)
    steer = _wait_for_turn(AsyncTurnHandle.steer)
    fork = _wait_for_turn(AsyncTurnHandle.fork)
    close = _wait(AsyncTurnHandle.close)
