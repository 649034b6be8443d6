"""The client for programs that are not async: the same client, on an event loop in a thread of its own.

So it also works where a loop is already running, as in a notebook, and may be used from several threads.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar, Unpack

from turnwire.client.async_client import AsyncClient, AsyncTurnHandle
from turnwire.client.values import (
    DEFAULT_URL,
    MessageOptions,
    ReconnectLimits,
    ServerAddress,
    SessionPage,
    SessionSummary,
    SessionTurns,
    TurnSnapshot,
    TurnSummary,
    TurnUpdate,
)
from turnwire.core.contracts.stores import OnBusy
from turnwire.core.contracts.wires import Gap, Reset
from turnwire.core.log.events import Event
from turnwire.core.log.turns import TurnState

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


class Client:
    """A client of one server: the methods of `AsyncClient`, which block until they have their result."""

    def __init__(
        self,
        server: str | ServerAddress | Callable[[], ServerAddress] = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout: float = 30,
        limits: ReconnectLimits | None = None,
    ) -> None:
        self._client = AsyncClient(server, key=key, timeout=timeout, limits=limits)
        self._thread = LoopThread()

    @property
    def name(self) -> str:
        """Return the name of the server for a person to read."""
        return self._client.name

    def start(self, message: str, **options: Unpack[MessageOptions]) -> "TurnHandle":
        """Start a turn, and return when the server has accepted it. Retries start no second turn."""
        return TurnHandle(self._thread, self._thread.run(self._client.start(message, **options)))

    def enqueue(self, session: str, message: str, /, **options: Unpack[MessageOptions]) -> "TurnHandle":
        """Start a turn in an existing session without opening its stream."""
        return TurnHandle(self._thread, self._thread.run(self._client.enqueue(session, message, **options)))

    def turn(self, turn_id: str, *, after: str | None = None) -> "TurnHandle":
        """Return a handle for an existing turn; `after` is the id of the last event that you have."""
        return TurnHandle(self._thread, self._client.turn(turn_id, after=after))

    def turns(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        search: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[TurnSummary]:
        """Return turns, newest first."""
        return self._thread.run(
            self._client.turns(session=session, agent=agent, status=status, search=search, before=before, limit=limit)
        )

    def snapshot(self, turn_id: str) -> TurnSnapshot:
        return self._thread.run(self._client.snapshot(turn_id))

    def cancel(self, turn_id: str) -> TurnSnapshot:
        """Stop a turn, and return when it has stopped."""
        return self._thread.run(self._client.cancel(turn_id))

    def decide(
        self,
        turn_id: str,
        call_id: str,
        *,
        approved: bool,
        reason: str | None = None,
        args: dict[str, Any] | None = None,
        edited_args: dict[str, Any] | None = None,
    ) -> TurnSnapshot:
        """Approve or refuse a tool call that a turn waits for; with `args` only if these are its arguments.

        With `edited_args`, the tool runs with these arguments instead, if its request is `editable`.
        """
        return self._thread.run(
            self._client.decide(turn_id, call_id, approved=approved, reason=reason, args=args, edited_args=edited_args)
        )

    def reply(
        self,
        turn_id: str,
        question_id: str,
        value: Any = None,
        *,
        declined: bool = False,
        reason: str | None = None,
    ) -> TurnSnapshot:
        """Answer a question that a turn waits for, or decline to answer it."""
        return self._thread.run(self._client.reply(turn_id, question_id, value, declined=declined, reason=reason))

    def send_tool_result(self, turn_id: str, call_id: str, output: Any, *, is_error: bool = False) -> TurnSnapshot:
        """Send the result of a tool that this program has run for a turn."""
        return self._thread.run(self._client.send_tool_result(turn_id, call_id, output, is_error=is_error))

    def fork(
        self,
        turn_id: str,
        position: int,
        *,
        message: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        on_busy: OnBusy | None = None,
        idempotency_key: str | None = None,
    ) -> "TurnHandle":
        """Start a turn that shares the log of another one up to a position."""
        forked = self._client.fork(
            turn_id,
            position,
            message=message,
            agent=agent,
            model=model,
            on_busy=on_busy,
            idempotency_key=idempotency_key,
        )
        return TurnHandle(self._thread, self._thread.run(forked))

    def create_session(self, session_id: str | None = None, *, title: str | None = None) -> SessionSummary:
        """Create a session and return it. One with an id of your own is created once."""
        return self._thread.run(self._client.create_session(session_id, title=title))

    def sessions(self, *, search: str | None = None, before: str | None = None, limit: int = 50) -> SessionPage:
        """Return sessions, those with the newest activity first."""
        return self._thread.run(self._client.sessions(search=search, before=before, limit=limit))

    def session(self, session_id: str, *, limit: int = 100) -> SessionTurns:
        """Return a session and its last turns."""
        return self._thread.run(self._client.session(session_id, limit=limit))

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a JSON request to any route, and return the JSON of the answer. Only a GET is retried."""
        return self._thread.run(self._client.request(method, path, body))

    def download(self, path: str) -> bytes:
        """Return a file of the server."""
        return self._thread.run(self._client.download(path))

    def close(self) -> None:
        """Close all connections and the thread. Turns that were started go on; calls in other threads fail."""
        self._thread.stop(self._client.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TurnHandle:
    """One turn: the methods of `AsyncTurnHandle`, which block until they have their result."""

    def __init__(self, thread: LoopThread, turn: AsyncTurnHandle) -> None:
        self._thread = thread
        self._turn = turn

    @property
    def id(self) -> str:
        return self._turn.id

    @property
    def session_id(self) -> str | None:
        """Return the id of the turn's session; None if the server has not named it yet."""
        return self._turn.session_id

    @property
    def last_event_id(self) -> str | None:
        """Return the id of the last event that was read, to continue after it in another process."""
        return self._turn.last_event_id

    @property
    def position(self) -> int:
        """Return the position of the last event that was read."""
        return self._turn.position

    @property
    def text(self) -> str:
        """Return the answer as far as its events were read, without the parts that a restart has made void."""
        return self._turn.text

    def events(self) -> Generator[Event | Gap | Reset]:
        """Yield the events that were not read yet, each once, until the turn has ended: see `AsyncTurnHandle`."""
        return self._thread.iterate(self._turn.events())

    def updates(self) -> Generator[TurnUpdate]:
        """Yield the events like `events`, with their ids and lines of JSON, and the changes of the connection."""
        return self._thread.iterate(self._turn.updates())

    def result(self) -> TurnState:
        """Read the turn to its end, and return its state: text, steps, citations, usage, outcome, error."""
        return self._thread.run(self._turn.result())

    def snapshot(self) -> TurnSnapshot:
        return self._thread.run(self._turn.snapshot())

    def cancel(self) -> TurnSnapshot:
        """Stop the turn, and return when it has stopped."""
        return self._thread.run(self._turn.cancel())

    def decide(
        self,
        call_id: str,
        *,
        approved: bool,
        reason: str | None = None,
        args: dict[str, Any] | None = None,
        edited_args: dict[str, Any] | None = None,
    ) -> TurnSnapshot:
        """Approve or refuse a tool call that the turn waits for: see `Client.decide`."""
        return self._thread.run(
            self._turn.decide(call_id, approved=approved, reason=reason, args=args, edited_args=edited_args)
        )

    def reply(
        self, question_id: str, value: Any = None, *, declined: bool = False, reason: str | None = None
    ) -> TurnSnapshot:
        """Answer a question that the turn waits for, or decline to answer it."""
        return self._thread.run(self._turn.reply(question_id, value, declined=declined, reason=reason))

    def send_tool_result(self, call_id: str, output: Any, *, is_error: bool = False) -> TurnSnapshot:
        """Send the result of a tool that this program has run for the turn."""
        return self._thread.run(self._turn.send_tool_result(call_id, output, is_error=is_error))

    def steer(self, message: str, **options: Unpack[MessageOptions]) -> "TurnHandle":
        """Put a message into the running turn, and return the message's own turn."""
        return TurnHandle(self._thread, self._thread.run(self._turn.steer(message, **options)))

    def fork(
        self,
        position: int,
        *,
        message: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        on_busy: OnBusy | None = None,
        idempotency_key: str | None = None,
    ) -> "TurnHandle":
        """Start a turn that shares the log of this one up to a position."""
        forked = self._turn.fork(
            position,
            message=message,
            agent=agent,
            model=model,
            on_busy=on_busy,
            idempotency_key=idempotency_key,
        )
        return TurnHandle(self._thread, self._thread.run(forked))

    def close(self) -> None:
        """Close the stream that `start` has opened, if its events are not read. The turn goes on."""
        self._thread.run(self._turn.close())
