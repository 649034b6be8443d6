"""Hosts: where the turns run that a terminal shows. `RemoteHost` is a server; the embedded host is in `cli.hosts`."""

import json
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from turnwire.channels.console.client import (
    HostError,
    ServerAddress,
    ServerClient,
    SseFrame,
    TurnCursor,
    error_text,
    sse_frames,
)
from turnwire.core.backoff import Backoff
from turnwire.core.codec import clean_text, decode_event
from turnwire.core.events import DoneEvent, Event


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

    def converse(self, message: str, session_id: str | None, agent: str | None) -> AsyncGenerator[TurnUpdate]:
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

    async def converse(self, message: str, session_id: str | None, agent: str | None) -> AsyncGenerator[TurnUpdate]:
        body = {"message": message, "session_id": session_id, "agent": agent}
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
