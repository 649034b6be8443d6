"""Hosts of a terminal's turns, and the HTTP client of a server, which the command line uses too.

`RemoteHost` is a server; the embedded host is in `cli.hosts`.
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, Self, cast
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from msgspec import Struct

from turnwire.core.backoff import Backoff
from turnwire.core.codec import clean_text, decode_event
from turnwire.core.contracts import OnBusy
from turnwire.core.events import DoneEvent, Event

_CONNECT_SECONDS = 10.0
_TIMEOUT_SECONDS = 30.0


class HostError(Exception):
    """A request that failed. The message says why, and what to do."""


class ServerAddress(Struct, frozen=True):
    """The URL of a server and the API key for it; `is_local` if it was found through its data folder."""

    url: str
    key: str | None = None
    is_local: bool = False


class ServerClient:
    """A client of one server. `hint` is what a person can do when the server does not answer."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        read_timeout: float = _TIMEOUT_SECONDS,
        hint: str = "check its address, or start one with `turnwire serve`",
    ) -> None:
        self.address = address
        self._hint = hint
        headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        if address.is_local:
            headers["Host"] = "localhost"  # Always allowed, whatever name or address the server listens on.
        try:
            self._http = httpx.AsyncClient(
                base_url=address.url,
                headers=headers,
                timeout=httpx.Timeout(_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS, read=read_timeout),
                # A proxy from the environment cannot reach a server on this machine.
                trust_env=not address.is_local,
                # Loading certificates takes a while, and plain HTTP has none to verify.
                verify=urlsplit(address.url).scheme == "https",
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise HostError(f"{address.url} is not a valid URL: {error}") from error

    @property
    def name(self) -> str:
        return f"the server at {self.address.url}"

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a JSON request and return the JSON response. Raise HostError if either fails."""
        response = await self._request(method, path, body)
        try:
            return cast("dict[str, Any]", response.json() if response.content else {})
        except ValueError as error:
            raise HostError(f"{self.name} did not answer with JSON; check that it is a Turnwire server") from error

    async def download(self, path: str) -> bytes:
        """Return a file of the server. Raise HostError."""
        return (await self._request("GET", path)).content

    async def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=body, follow_redirects=method == "GET")
        except httpx.TransportError as error:
            raise self.unreachable(error) from error
        if not response.is_success:
            raise HostError(_error_message(response))
        return response

    @asynccontextmanager
    async def stream(self, cursor: "TurnCursor") -> AsyncGenerator[httpx.Response]:
        """Open the event stream after the cursor; start the turn if it has none yet.

        Raise HostError if the server refuses, and TransportError if it may come back.
        """
        if cursor.turn_id is None:
            # A retry with the same key starts no second turn.
            headers = {"Idempotency-Key": cursor.idempotency_key}
            opening = self._http.stream("POST", "/chat/stream", headers=headers, json=cursor.body)
        else:
            headers = {"Last-Event-ID": cursor.last_event_id} if cursor.last_event_id else {}
            opening = self._http.stream("GET", f"/v1/turns/{cursor.turn_id}/events", headers=headers)
        async with opening as response:
            # A restarting server, or the proxy in front of it, answers with one of these.
            if response.status_code in (502, 503, 504) and cursor.is_sent:
                raise httpx.ReadError(f"HTTP status {response.status_code}")
            cursor.is_sent = True
            if response.is_error:
                await response.aread()
                raise HostError(_error_message(response))
            cursor.turn_id = response.headers.get("X-Turn-Id", cursor.turn_id)
            yield response

    def unreachable(self, error: Exception) -> HostError:
        return HostError(f"{self.name} does not answer ({error_text(error)}); {self._hint}")

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class TurnCursor:
    """The position of a client in one turn's event stream, kept across connections."""

    def __init__(self, body: dict[str, str]) -> None:
        self.body = body
        self.idempotency_key = uuid.uuid4().hex
        self.turn_id: str | None = None
        self.last_event_id: str | None = None
        self.position = 0
        self.is_sent = False
        """True once the server may have received the message."""

    def advance(self, event_id: str) -> bool:
        """Move to an event. Return False if it was read before."""
        position = int(event_id.partition(".")[0])
        if position <= self.position:
            return False
        self.last_event_id, self.position = event_id, position
        return True

    def rewind(self) -> None:
        self.last_event_id, self.position = None, 0


class SseFrame(Struct, frozen=True):
    data: bytes
    id: str | None = None


async def sse_frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[SseFrame]:
    """Parse server-sent events. Comments, unknown fields and an incomplete last frame are left out."""
    rest = b""
    event_id, data = None, list[bytes]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                event_id = value.decode("latin-1")
            elif name == b"data":
                data.append(value)
            elif not name and not line.strip():
                if data:
                    yield SseFrame(b"\n".join(data), event_id)
                event_id, data = None, []


def error_text(error: Exception) -> str:
    return clean_text(str(error)) or type(error).__name__


def _error_message(response: httpx.Response) -> str:
    try:
        message = clean_text(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {response.status_code} {response.reason_phrase}"
    if response.status_code == 401:
        message += "; pass a key with --key, or set TURNWIRE_API_KEY"
    return message


# Hosts


class ReceivedEvent(Struct, frozen=True):
    """An event of the turn, and its line of JSON in the log."""

    event: Event
    body: bytes


class ConnectionLost(Struct, frozen=True):
    """The connection broke and is being retried; the turn goes on meanwhile."""

    reason: str


class ConnectionRestored(Struct, frozen=True):
    """The connection is back, and no event was missed."""


class LogNotice(Struct, frozen=True):
    """A remark about the log as a whole, such as a removed beginning."""

    text: str


TurnUpdate = ReceivedEvent | ConnectionLost | ConnectionRestored | LogNotice


class PastSession(Struct, frozen=True):
    id: str
    title: str
    turn_count: int


class Exchange(Struct, frozen=True):
    """A message and its answer."""

    message: str
    answer: str


class Host(Protocol):
    """Runs turns and knows past sessions. Every method may raise HostError."""

    @property
    def name(self) -> str:
        """Return the host's name for a person to read."""
        ...

    def converse(
        self, message: str, session_id: str | None, agent: str | None, on_busy: OnBusy = "enqueue"
    ) -> AsyncGenerator[TurnUpdate]:
        """Start a turn and yield its events to the end, each once. Closing the generator does not stop the turn."""
        ...

    async def cancel(self, turn_id: str) -> None: ...

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None: ...

    async def sessions(self, limit: int) -> list[PastSession]:
        """Return the sessions, newest first."""
        ...

    async def last_exchange(self, session_id: str) -> Exchange | None: ...

    async def agents(self) -> list[str]:
        """Return the agents' names; empty if the host does not publish them."""
        ...

    async def close(self) -> None: ...


class ReconnectLimits(Struct, frozen=True):
    """The limits of reconnecting. `read_timeout` is the silence after which a connection counts as lost."""

    give_up_seconds: float = 60
    backoff: Backoff = Backoff(first=0.1, longest=2)
    read_timeout: float = 60


class _Outage(Struct):
    began_at: float
    attempts: int = 0
    is_reported: bool = False


class RemoteHost:
    """A server, over HTTP. A lost connection is resumed after the last event that was read."""

    def __init__(self, find: Callable[[], ServerAddress], limits: ReconnectLimits | None = None) -> None:
        """`find` is called again after a lost connection: a restarted server may listen on another address."""
        self._find = find
        self._limits = limits or ReconnectLimits()
        self._client = self._connect(find())

    @property
    def name(self) -> str:
        return self._client.name

    async def converse(
        self, message: str, session_id: str | None, agent: str | None, on_busy: OnBusy = "enqueue"
    ) -> AsyncGenerator[TurnUpdate]:
        body = {"message": message, "session_id": session_id, "agent": agent, "on_busy": on_busy}
        reader = _TurnReader(TurnCursor({name: value for name, value in body.items() if value is not None}))
        outage: _Outage | None = None
        while True:
            try:
                async with self._client.stream(reader.cursor) as response:
                    if outage is not None and outage.is_reported:
                        yield ConnectionRestored()
                    outage, reader.is_reconnect_requested = None, False
                    if response.status_code == 204:
                        return
                    async for frame in sse_frames(response.aiter_bytes()):
                        if (update := reader.read(frame)) is not None:
                            yield update
                        if reader.is_done:
                            return
                reason = "the stream ended early"
            except httpx.TransportError as error:
                # A message that was never sent started no turn, so there is nothing to resume.
                if not reader.cursor.is_sent and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise self._client.unreachable(error) from error
                reader.cursor.is_sent = True
                reason = error_text(error)
            # A draining server asks its readers to reconnect; that is reported only if the next attempt fails.
            is_expected = outage is None and reader.is_reconnect_requested
            outage = outage or _Outage(time.monotonic())
            if not outage.is_reported and not is_expected:
                outage.is_reported = True
                yield ConnectionLost(reason)
            await self._reconnect(outage, reader.cursor)

    async def _reconnect(self, outage: _Outage, cursor: TurnCursor) -> None:
        seconds = time.monotonic() - outage.began_at
        if seconds > self._limits.give_up_seconds:
            raise HostError(
                f"{self.name} has not answered for {seconds:.0f} seconds. The turn is in its log: start the server "
                f"again, then run `turnwire tail {cursor.turn_id or ''}`".rstrip()
            )
        outage.attempts += 1
        await self._limits.backoff.wait(outage.attempts)
        try:
            address = self._find()
        except HostError:
            return  # Not back yet.
        if address != self._client.address:
            await self._client.close()
            self._client = self._connect(address)

    async def cancel(self, turn_id: str) -> None:
        await self._client.call("POST", f"/v1/turns/{quote(turn_id, safe='')}/cancel")

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None:
        path = f"/v1/turns/{quote(turn_id, safe='')}/approvals/{quote(call_id, safe='')}"
        await self._client.call("POST", path, {"approved": approved} | ({"reason": reason} if reason else {}))

    async def sessions(self, limit: int) -> list[PastSession]:
        page = await self._client.call("GET", f"/v1/sessions?limit={limit}")
        return [
            PastSession(session["id"], clean_text(session.get("title") or ""), session.get("turn_count", 0))
            for session in page["sessions"]
        ]

    async def last_exchange(self, session_id: str) -> Exchange | None:
        session = await self._client.call("GET", f"/v1/sessions/{quote(session_id, safe='')}?limit=1")
        if not session["turns"]:
            return None
        turn = session["turns"][-1]
        state = (await self._client.call("GET", f"/v1/turns/{turn['turn_id']}"))["state"]
        return Exchange(clean_text(turn["message"]), clean_text(state.get("text", "")))

    async def agents(self) -> list[str]:
        return []

    async def close(self) -> None:
        await self._client.close()

    def _connect(self, address: ServerAddress) -> ServerClient:
        hint = "start one with `turnwire serve`, or use --embedded to run without a server"
        return ServerClient(address, read_timeout=self._limits.read_timeout, hint=hint)


class _TurnReader:
    """Turns the frames of one turn's stream into updates."""

    def __init__(self, cursor: TurnCursor) -> None:
        self.cursor = cursor
        self.is_done = False
        self.is_reconnect_requested = False

    def read(self, frame: SseFrame) -> ReceivedEvent | LogNotice | None:
        if frame.id is None:
            return self._read_control(json.loads(frame.data))
        if not self.cursor.advance(frame.id):
            return None
        try:
            event = decode_event(frame.data)
        except msgspec.ValidationError:
            return None  # A newer server's event that this client cannot show.
        self.is_done = isinstance(event, DoneEvent)
        return ReceivedEvent(event, frame.data)

    def _read_control(self, control: dict[str, Any]) -> LogNotice | None:
        match control.get("type"):
            case "reset":
                self.cursor.rewind()
                return LogNotice("the server has another log now; it is shown from its start")
            case "gap":
                self.cursor.position = max(self.cursor.position, int(control.get("first_kept", 1)) - 1)
                return LogNotice("the beginning of this log was removed")
            case "reconnect":
                self.is_reconnect_requested = True
                return None
            case _:
                return None
