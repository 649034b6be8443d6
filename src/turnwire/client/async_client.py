"""The client for async programs: it starts turns, reads them across lost connections, and calls the other routes."""

import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from turnwire.client.errors import ClientError, RefusedError, ServerUnreachableError
from turnwire.client.frames import FrameReader, sse_frames
from turnwire.client.link import PASSING, Outage, ServerLink
from turnwire.client.values import (
    DEFAULT_URL,
    ConnectionLost,
    ConnectionRestored,
    MessageOptions,
    ReceivedEvent,
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

if TYPE_CHECKING:
    from turnwire.client.connection import OpenStream

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient:
    """A client of one server.

    Requests that can be repeated safely are retried when the server does not answer: all requests of this class, except
    `request` with a method other than GET. Every method may raise ClientError.
    """

    def __init__(
        self,
        server: str | ServerAddress | Callable[[], ServerAddress] = DEFAULT_URL,
        *,
        key: str | None = None,
        timeout: float = 30,
        limits: ReconnectLimits | None = None,
    ) -> None:
        """`server` is a URL, or a function that finds the server and is called again after a lost connection.

        `key` is an API key for a URL. `timeout` is the longest wait for an answer, in seconds.
        """
        if isinstance(server, str):
            server = ServerAddress(server.rstrip("/"), key)
        elif key is not None:
            raise ValueError("a key is for a URL; otherwise it belongs to the ServerAddress")
        self._link = ServerLink(server if callable(server) else lambda: server, timeout, limits or ReconnectLimits())

    @property
    def name(self) -> str:
        """Return the name of the server for a person to read."""
        return self._link.name

    # Turns

    async def start(self, message: str, **options: Unpack[MessageOptions]) -> "AsyncTurnHandle":
        """Start a turn, and return when the server has accepted it. Retries start no second turn."""
        turn = self.draft(message, **options)
        await turn.send()
        return turn

    def draft(self, message: str, **options: Unpack[MessageOptions]) -> "AsyncTurnHandle":
        """Return a turn whose message is sent when its events are first read."""
        body, key = _message(message, options)
        return AsyncTurnHandle(self, self._link, body=body, idempotency_key=key)

    async def enqueue(self, session: str, message: str, /, **options: Unpack[MessageOptions]) -> "AsyncTurnHandle":
        """Start a turn in an existing session without opening its stream."""
        body, key = _message(message, options)
        path = f"/v1/sessions/{_part(session)}/turns"
        summary = await self._fetch(TurnSummary, "POST", path, body, {"Idempotency-Key": key})
        return AsyncTurnHandle(self, self._link, summary.turn_id, summary.session_id)

    def turn(self, turn_id: str, *, after: str | None = None) -> "AsyncTurnHandle":
        """Return a handle for an existing turn; `after` is the id of the last event that you have."""
        return AsyncTurnHandle(self, self._link, turn_id, after=after)

    async def turns(
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
        query = _query(session=session, agent=agent, status=status, search=search, before=before, limit=limit)
        return (await self._fetch(_TurnPage, "GET", f"/v1/turns{query}")).turns

    async def snapshot(self, turn_id: str) -> TurnSnapshot:
        return await self._fetch(TurnSnapshot, "GET", f"/v1/turns/{_part(turn_id)}")

    async def cancel(self, turn_id: str) -> TurnSnapshot:
        """Stop a turn, and return when it has stopped."""
        return await self._fetch(TurnSnapshot, "POST", f"/v1/turns/{_part(turn_id)}/cancel")

    async def decide(
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
        body: dict[str, Any] = {"approved": approved}
        body |= ({"reason": reason} if reason else {}) | ({} if args is None else {"args": args})
        body |= {} if edited_args is None else {"edited_args": edited_args}
        path = f"/v1/turns/{_part(turn_id)}/approvals/{_part(call_id)}"
        return await self._fetch(TurnSnapshot, "POST", path, body)

    async def reply(
        self,
        turn_id: str,
        question_id: str,
        value: Any = None,
        *,
        declined: bool = False,
        reason: str | None = None,
    ) -> TurnSnapshot:
        """Answer a question that a turn waits for, or decline to answer it."""
        body: dict[str, Any] = {"question_id": question_id}
        body |= {"declined": True} if declined else {"value": value}
        body |= {"reason": reason} if reason else {}
        return await self._fetch(TurnSnapshot, "POST", f"/v1/turns/{_part(turn_id)}/replies", body)

    async def send_tool_result(
        self, turn_id: str, call_id: str, output: Any, *, is_error: bool = False
    ) -> TurnSnapshot:
        """Send the result of a tool that this program has run for a turn."""
        body = {"call_id": call_id, "output": output, "is_error": is_error}
        return await self._fetch(TurnSnapshot, "POST", f"/v1/turns/{_part(turn_id)}/tool-results", body)

    async def fork(
        self,
        turn_id: str,
        position: int,
        *,
        message: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        on_busy: OnBusy | None = None,
        idempotency_key: str | None = None,
    ) -> "AsyncTurnHandle":
        """Start a turn that shares the log of another one up to a position."""
        options = {"message": message, "agent": agent, "model": model, "on_busy": on_busy}
        body = {"position": position} | {name: value for name, value in options.items() if value is not None}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        snapshot = await self._fetch(TurnSnapshot, "POST", f"/v1/turns/{_part(turn_id)}/fork", body, headers)
        return AsyncTurnHandle(self, self._link, snapshot.turn_id, snapshot.session_id)

    # Sessions

    async def create_session(self, session_id: str | None = None, *, title: str | None = None) -> SessionSummary:
        """Create a session and return it. One with an id of your own is created once."""
        # Retries need an id, so that they create one session.
        body = {"id": session_id or uuid.uuid4().hex} | ({"title": title} if title else {})
        return await self._fetch(SessionSummary, "POST", "/v1/sessions", body)

    async def sessions(self, *, search: str | None = None, before: str | None = None, limit: int = 50) -> SessionPage:
        """Return sessions, those with the newest activity first."""
        return await self._fetch(SessionPage, "GET", f"/v1/sessions{_query(search=search, before=before, limit=limit)}")

    async def session(self, session_id: str, *, limit: int = 100) -> SessionTurns:
        """Return a session and its last turns."""
        return await self._fetch(SessionTurns, "GET", f"/v1/sessions/{_part(session_id)}{_query(limit=limit)}")

    # Other routes

    async def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a JSON request to any route, and return the JSON of the answer. Only a GET is retried."""
        answer = await self._link.send(method, path, body, is_repeatable=method == "GET")
        return self._decode(dict[str, Any], answer) if answer else {}

    async def download(self, path: str) -> bytes:
        """Return a file of the server."""
        return await self._link.send("GET", path)

    async def close(self) -> None:
        """Close all connections. Turns that were started go on."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch(
        self, type: type[T], method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> T:
        return self._decode(type, await self._link.send(method, path, body, headers))

    def _decode(self, type: type[T], body: bytes) -> T:
        try:
            return msgspec.json.decode(body, type=type)
        except msgspec.DecodeError as error:
            raise ClientError(
                f"{self.name} did not answer with the JSON of this route; check that it is a Turnwire server",
                code="not_turnwire",
            ) from error


def _of_turn(
    method: Callable[Concatenate[AsyncClient, str, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["AsyncTurnHandle", P], Coroutine[Any, Any, T]]:
    """Return a method of a turn that calls one of the client with the turn's id."""

    async def call(self: "AsyncTurnHandle", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(self.client, self.id, *args, **kwargs)

    # Not `wraps`: the signature of the method has the turn's id.
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class AsyncTurnHandle:
    """One turn. It remembers which events were read, so that reading again continues; one reader at a time."""

    def __init__(
        self,
        client: AsyncClient,
        link: ServerLink,
        turn_id: str | None = None,
        session_id: str | None = None,
        *,
        after: str | None = None,
        body: dict[str, Any] | None = None,
        idempotency_key: str = "",
    ) -> None:
        self.client = client
        self._link = link
        self._turn_id = turn_id
        self._session_id = session_id
        self._body = body
        self._idempotency_key = idempotency_key
        self._reader = FrameReader(after)
        self._opened: OpenStream | None = None
        self.is_reached = False
        """True once the server has answered, or may have received the message."""

    @property
    def id(self) -> str:
        """Return the turn's id. Raise ClientError if its message was not sent yet."""
        if self._turn_id is None:
            raise ClientError("the turn has no id yet: its message was not sent", code="not_started")
        return self._turn_id

    @property
    def is_started(self) -> bool:
        """Return True once the turn has an id."""
        return self._turn_id is not None

    @property
    def last_event_id(self) -> str | None:
        """Return the id of the last event that was read, to continue after it in another process."""
        return self._reader.last_event_id

    @property
    def position(self) -> int:
        """Return the position of the last event that was read."""
        return self._reader.position

    @property
    def text(self) -> str:
        """Return the answer as far as its events were read, without the parts that a restart has made void."""
        return self._reader.text

    @property
    def session_id(self) -> str | None:
        """Return the id of the turn's session; None if the server has not named it yet."""
        return self._session_id

    async def send(self) -> None:
        """Send the message, if it was not sent yet, and return when the server has accepted it."""
        outage = Outage()
        while self._turn_id is None:
            try:
                self._opened = await self._open()
            except ClientError as error:
                self._check(outage, error)
                await self._link.wait(outage, error)

    async def events(self) -> AsyncGenerator[Event | Gap | Reset]:
        """Yield the events that were not read yet, each once, until the turn has ended.

        A lost connection is reopened after the last event. Two other values may come: `Gap` (old events were removed;
        `state` is their result) and `Reset` (the server has another log now, which follows from its start).
        """
        async with aclosing(self.updates()) as updates:
            async for update in updates:
                match update:
                    case ReceivedEvent(event=event):
                        yield event
                    case Gap() | Reset():
                        yield update
                    case ConnectionLost() | ConnectionRestored():
                        pass

    async def updates(self) -> AsyncGenerator[TurnUpdate]:
        """Yield the events like `events`, with their ids and lines of JSON, and the changes of the connection."""
        reader = self._reader
        outage: Outage | None = None
        while not reader.is_done:
            error: ClientError = ServerUnreachableError("the stream ended early", reason="the stream ended early")
            try:
                stream = await self._take()
                reader.retry_seconds = None
                try:
                    if outage is not None and outage.is_reported:
                        outage.is_reported = False
                        yield ConnectionRestored()
                    if stream.status == 204:
                        return
                    async with aclosing(stream.chunks()) as chunks, aclosing(sse_frames(chunks)) as frames:
                        async for frame in frames:
                            if (update := reader.read(frame)) is not None:
                                yield update
                            if reader.is_done:
                                return
                finally:
                    # A server that takes the connection and sends nothing is still away.
                    outage = None if stream.has_data else outage
                    await stream.close()
            except ClientError as failure:
                error = failure
            # A draining server asks its readers to reconnect; that is reported only if the next attempt fails.
            seconds = None if outage is not None else reader.retry_seconds
            outage = outage or Outage()
            self._check(outage, error)
            if not outage.is_reported and seconds is None:
                outage.is_reported = True
                yield ConnectionLost(_reason(error))
            await self._link.wait(outage, error, seconds)

    async def result(self) -> TurnState:
        """Read the turn to its end, and return its state: text, steps, citations, usage, outcome, error."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return (await self.snapshot()).state

    snapshot = _of_turn(AsyncClient.snapshot)
    cancel = _of_turn(AsyncClient.cancel)
    decide = _of_turn(AsyncClient.decide)
    reply = _of_turn(AsyncClient.reply)
    send_tool_result = _of_turn(AsyncClient.send_tool_result)
    fork = _of_turn(AsyncClient.fork)

    async def steer(self, message: str, **options: Unpack[MessageOptions]) -> "AsyncTurnHandle":
        """Put a message into the running turn, and return the message's own turn.

        The message's turn ends as `joined`. If the running turn ends first, it is the next turn of the session.
        """
        options.setdefault("on_busy", "steer")
        session_id = self._session_id or (await self.snapshot()).session_id
        return await self.client.enqueue(session_id, message, **options)

    async def close(self) -> None:
        """Close the stream that `start` has opened, if its events are not read. The turn goes on."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _take(self) -> "OpenStream":
        opened, self._opened = self._opened, None
        return opened or await self._open()

    async def _open(self) -> "OpenStream":
        """Open the stream after the last event; start the turn if it has no id yet."""
        try:
            if self._turn_id is None:
                # A retry with the same key starts no second turn.
                headers = {"Idempotency-Key": self._idempotency_key}
                stream = await self._link.open("POST", "/chat/stream", self._body, headers)
            else:
                headers = {"Last-Event-ID": self._reader.last_event_id} if self._reader.last_event_id else {}
                path = f"/v1/turns/{_part(self._turn_id)}/events"
                stream = await self._link.open("GET", path, None, headers)
        except ServerUnreachableError as error:
            if error.is_sent:
                self.is_reached = True
            raise
        self.is_reached = True
        self._turn_id = self._turn_id or stream.headers.get("X-Turn-Id")
        self._session_id = self._session_id or stream.headers.get("X-Session-Id")
        is_stream = stream.status == 204 or stream.headers.get("Content-Type", "").startswith("text/event-stream")
        if self._turn_id is None or not is_stream:
            await stream.close()
            raise ClientError(
                "the answer is not the stream of a turn; check that this is a Turnwire server", code="not_turnwire"
            )
        return stream

    def _check(self, outage: "Outage", error: ClientError) -> None:
        """Raise the error if a retry cannot help, or if the outage has lasted too long."""
        limits = self._link.limits
        if not self.is_reached:
            if not self._link.is_worth_a_retry(outage, error):
                raise error
        elif not isinstance(error, ServerUnreachableError | RefusedError) or error.status not in {0, *PASSING}:
            raise error
        elif outage.seconds > limits.give_up_seconds:
            raise ServerUnreachableError(
                f"{self._link.name} has not answered for {outage.seconds:.0f} seconds "
                f"({_reason(error)}); the turn is in its log",
                reason=_reason(error),
                status=error.status,
                code=error.code,
            ) from error


class _TurnPage(Struct, frozen=True):
    turns: list[TurnSummary]


def _message(message: str, options: MessageOptions) -> tuple[dict[str, Any], str]:
    """Return the body of a message and its idempotency key."""
    key = options.get("idempotency_key") or uuid.uuid4().hex
    fields = {name: value for name, value in options.items() if value is not None and name != "idempotency_key"}
    return {"message": message, **fields}, key


def _reason(error: ClientError) -> str:
    return error.reason if isinstance(error, ServerUnreachableError) else f"HTTP status {error.status}"


def _part(id: str) -> str:
    return quote(id, safe="")


def _query(**fields: str | int | None) -> str:
    return "?" + urlencode({name: value for name, value in fields.items() if value is not None})
