"""Where turns run that a terminal shows: on a server, or in this process."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from msgspec import Struct

from turnwire.core.codec import clean_text, decode_event
from turnwire.core.events import Event


class HostError(Exception):
    """It cannot be done there. The message says why, and what to do."""


class Heard(Struct, frozen=True):
    """An event of the turn, and the line of JSON that it is in the log."""

    event: Event
    body: bytes


class Lost(Struct, frozen=True):
    """The connection is lost; it is tried again. The turn goes on meanwhile."""

    why: str


class FoundTurn(Struct, frozen=True):
    """The connection is there again, and nothing was missed."""


class Noted(Struct, frozen=True):
    """Something about the log as a whole that its reader must know."""

    text: str


class PastSession(Struct, frozen=True):
    id: str
    title: str
    turn_count: int
    updated_at: str = ""


class Exchange(Struct, frozen=True):
    """What was asked, and what was answered."""

    message: str
    answer: str


class Host(Protocol):
    """Every method may raise HostError."""

    @property
    def name(self) -> str:
        """What it is, for a person."""
        ...

    def converse(
        self, message: str, session_id: str | None, agent: str | None
    ) -> AsyncGenerator[Heard | Lost | FoundTurn | Noted]:
        """Starts a turn and tells it to its end, each event once. It must be closed; that stops nothing."""
        ...

    async def cancel(self, turn_id: str) -> None: ...

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None: ...

    async def sessions(self, limit: int) -> list[PastSession]:
        """Newest first."""
        ...

    async def last_exchange(self, session_id: str) -> Exchange | None: ...

    async def agents(self) -> list[str]:
        """The names that can be asked for; none if it does not tell."""
        ...

    async def close(self) -> None: ...


# Reads server-sent events: what a stream says, frame by frame, wherever its chunks are cut.


class Frame(Struct, frozen=True):
    data: bytes
    id: str | None = None


async def frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[Frame]:
    """Comments and unknown fields are left out. What is cut off in the middle of a frame is not one."""
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
                    yield Frame(b"\n".join(data), event_id)
                event_id, data = None, []


# Turns on a server, over HTTP. A connection may be lost at any moment: it goes on after the last event it had.


# What a server, or the proxy before it, answers while it is being started anew.
_PASSING = (502, 503, 504)


class Server(Struct, frozen=True):
    """Where a server is and what it is told of who calls; `is_local` if the data folder has told it."""

    url: str
    key: str | None = None
    is_local: bool = False


class Patience(Struct, frozen=True):
    """How long a lost server is waited for, and how long between two tries at most."""

    seconds: float = 60
    pause: float = 2
    silence: float = 60


class RemoteHost:
    def __init__(self, find: Callable[[], Server], patience: Patience | None = None) -> None:
        """`find` is asked again when the connection is lost: a server that was started anew may be elsewhere."""
        self._find = find
        self._patience = patience or Patience()
        self._server = find()
        self._http = self._client(self._server)

    @property
    def name(self) -> str:
        return f"the server at {self._server.url}"

    async def converse(
        self, message: str, session_id: str | None, agent: str | None
    ) -> AsyncGenerator[Heard | Lost | FoundTurn | Noted]:
        body = {"message": message, "session_id": session_id, "agent": agent}
        reading = _RemoteTurn({name: value for name, value in body.items() if value is not None})
        while True:
            try:
                async with self._open(reading) as response:
                    if reading.is_told_lost:
                        yield FoundTurn()
                    reading.lost_at, reading.is_sent_away, reading.is_told_lost = None, False, False
                    if response.status_code == 204:
                        return
                    async for frame in frames(response.aiter_bytes()):
                        if (told := reading.take(frame)) is not None:
                            yield told
                        if reading.is_over:
                            return
                lost = "the stream has ended early"
            except httpx.TransportError as error:
                # What was never sent may be given up; what was may have begun.
                if reading.is_first and isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise self._unreachable(error) from error
                reading.is_first = False
                lost = _reason(error)
            # A server may send its readers away and be there at once: that is worth no word.
            is_first_time, reading.lost_at = reading.lost_at is None, reading.lost_at or time.monotonic()
            if not reading.is_told_lost and not (is_first_time and reading.is_sent_away):
                reading.is_told_lost = True
                yield Lost(lost)
            await self._wait(reading)

    async def _wait(self, reading: "_RemoteTurn") -> None:
        assert reading.lost_at is not None
        away = time.monotonic() - reading.lost_at
        if away > self._patience.seconds:
            raise HostError(
                f"{self.name} has not answered for {away:.0f} seconds. The turn is in its log: start the server again, "
                f"and look with `turnwire tail {reading.turn_id or ''}`".rstrip()
            )
        await asyncio.sleep(min(self._patience.pause, 0.1 + away / 2))
        try:
            server = self._find()
        except HostError:
            return  # Not back yet.
        if server != self._server:
            await self._http.aclose()
            self._server, self._http = server, self._client(server)

    @asynccontextmanager
    async def _open(self, reading: "_RemoteTurn") -> AsyncGenerator[httpx.Response]:
        """A stream to read on from. Raises HostError if the server refuses, TransportError if it may come back."""
        if reading.turn_id is None:
            headers = {"Idempotency-Key": reading.key}
            opening = self._http.stream("POST", "/chat/stream", headers=headers, json=reading.body)
        else:
            headers = {"Last-Event-ID": reading.last_id} if reading.last_id else {}
            opening = self._http.stream("GET", f"/v1/turns/{reading.turn_id}/events", headers=headers)
        async with opening as response:
            if response.status_code in _PASSING and not reading.is_first:
                raise httpx.ReadError(f"it answered {response.status_code}")
            reading.is_first = False
            if response.is_error:
                await response.aread()
                raise HostError(told_by(response))
            reading.turn_id = response.headers.get("X-Turn-Id", reading.turn_id)
            yield response

    async def cancel(self, turn_id: str) -> None:
        await self._call("POST", f"/v1/turns/{quote(turn_id, safe='')}/cancel")

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None:
        path = f"/v1/turns/{quote(turn_id, safe='')}/approvals/{quote(call_id, safe='')}"
        await self._call("POST", path, {"approved": approved} | ({"reason": reason} if reason else {}))

    async def sessions(self, limit: int) -> list[PastSession]:
        told = await self._call("GET", f"/v1/sessions?limit={limit}")
        return [
            PastSession(
                one["id"], clean_text(one.get("title") or ""), one.get("turn_count", 0), one.get("updated_at") or ""
            )
            for one in told["sessions"]
        ]

    async def last_exchange(self, session_id: str) -> Exchange | None:
        told = await self._call("GET", f"/v1/sessions/{quote(session_id, safe='')}?limit=1")
        if not told["turns"]:
            return None
        turn = told["turns"][-1]
        state = (await self._call("GET", f"/v1/turns/{turn['turn_id']}"))["state"]
        return Exchange(clean_text(turn["message"]), clean_text(state.get("text", "")))

    async def agents(self) -> list[str]:
        return []

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise HostError(told_by(response))
        return cast("dict[str, Any]", response.json())

    def _unreachable(self, error: Exception) -> HostError:
        return HostError(
            f"{self.name} does not answer ({_reason(error)}); start one with `turnwire serve`, "
            "or use --embedded to do without"
        )

    def _client(self, server: Server) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        if server.is_local:
            # Always allowed, whatever name or address the server listens on.
            headers["Host"] = "localhost"
        return httpx.AsyncClient(
            base_url=server.url,
            headers=headers,
            timeout=httpx.Timeout(30, connect=10, read=self._patience.silence),
            # Never through a proxy when the server is on this machine.
            trust_env=not server.is_local,
            # Where nothing is encrypted there is nothing to verify, and to prepare for it takes a while.
            verify=urlsplit(server.url).scheme == "https",
        )


class _RemoteTurn:
    """How far one turn has been read."""

    def __init__(self, body: dict[str, str]) -> None:
        self.body = body
        self.key = uuid.uuid4().hex
        self.turn_id: str | None = None
        self.last_id: str | None = None
        self.lost_at: float | None = None
        self.is_first = True
        self.is_over = False
        self.is_sent_away = False
        self.is_told_lost = False
        self._position = 0

    def take(self, frame: Frame) -> Heard | Noted | None:
        if frame.id is None:
            return self._control(frame.data)
        position = int(frame.id.partition(".")[0])
        if position <= self._position:
            return None
        self.last_id, self._position = frame.id, position
        try:
            event = decode_event(frame.data)
        except msgspec.ValidationError:
            return None  # Of a newer server; what this one does not know it cannot show.
        self.is_over = frame.data.startswith(b'{"type":"done"')
        return Heard(event, frame.data)

    def _control(self, body: bytes) -> Noted | None:
        told: dict[str, Any] = json.loads(body)
        kind = told.get("type")
        if kind == "reset":
            self.last_id, self._position = None, 0
            return Noted("the server's log is another one now; it is shown from its start")
        if kind == "gap":
            self._position = max(self._position, int(told.get("first_kept", 1)) - 1)
            return Noted("the beginning of this log is not kept any more")
        if kind == "reconnect":
            self.is_sent_away = True  # Nothing is wrong: it asks to be called again.
        return None


def told_by(response: httpx.Response) -> str:
    """What an error answer says, and what to do where it does not say so."""
    try:
        told = clean_text(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        told = f"the server answered {response.status_code} {response.reason_phrase}"
    if response.status_code == 401:
        told += "; give one with --key, or set TURNWIRE_API_KEY"
    return told


def _reason(error: Exception) -> str:
    return clean_text(str(error)) or type(error).__name__
