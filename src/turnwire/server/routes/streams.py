"""The routes that stream, and `POST /chat`, which waits as long as a stream would.

Plain ASGI endpoints: each is called with the request, who is calling, and the headers to add, and
either answers or returns the stream to be opened.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from turnwire.assembly import SSE_CHAT, WIRES
from turnwire.core.contracts import Wire
from turnwire.core.encoding import ascii_json
from turnwire.core.errors import EventsGoneError, TurnNotFoundError
from turnwire.core.follow import follow
from turnwire.core.turns import TurnRecord
from turnwire.server.answers import answer_of, logged_json, turn_error
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers
from turnwire.server.requests import (
    Cursor,
    check_id,
    parse_cursor,
    parse_message,
    parse_session_cursor,
    path_of,
    query_of,
)
from turnwire.server.responses import respond, respond_json
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.opening import SessionStream, TurnStream
from turnwire.server.turnwire import Turnwire

Request = dict[str, Any]
OpenStream = TurnStream | SessionStream
Endpoint = Callable[[Request, Receive, Send, Caller, dict[bytes, bytes], Headers], Awaitable[OpenStream | None]]

_MOST_WAIT_SECONDS = 60
_EVENTS = re.compile(r"/v1/(turns|sessions)/([^/]+)/events")


class StreamRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire

    def find(self, method: str, path: str) -> Endpoint | None:
        """Raises HttpError 405."""
        if path in ("/chat", "/chat/stream"):
            wanted, endpoint = "POST", self.chat if path == "/chat" else self.chat_stream
        elif found := _EVENTS.fullmatch(path):
            wanted, endpoint = "GET", self.turn_events if found[1] == "turns" else self.session_events
        else:
            return None
        if method != wanted:
            raise HttpError(405, "method_not_allowed", f"only {wanted} is answered here", headers={"Allow": wanted})
        return endpoint

    async def chat_stream(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TurnStream:
        """Starts a turn, or joins the one the key names, and streams it."""
        caller.needs("write")
        body = parse_message(await read_json(receive, headers))
        cursor = parse_cursor({}, headers)
        with self._turnwire.streams.room(caller.principal):
            accepted = await self._turnwire.start(caller.principal, body, idempotency_key(headers))
            return await self._open(scope, caller, accepted.record, cursor, SSE_CHAT, added)

    async def turn_events(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TurnStream | None:
        """Any turn from any position, on any wire, live or finished; with `wait`, as JSON."""
        caller.needs("read")
        turn_id = check_id(path_of(scope).split("/")[3])
        query = query_of(scope)
        cursor = parse_cursor(query, headers)
        wire = WIRES.get(query.get("wire", SSE_CHAT.name))
        if wire is None:
            raise HttpError(422, "unknown_wire", f"wire: there is none of this name; there is {', '.join(WIRES)}")
        record = await self._turnwire.store.find_turn(caller.principal, turn_id)
        if "wait" in query:
            await self._long_poll(send, record, cursor, query["wait"], added)
            return None
        if record.phase == "ended" and cursor.position >= record.last_position and await self._is_ours(record, cursor):
            # A browser's EventSource comes back after every close; only this stops it.
            await respond(send, 204, b"", added)
            return None
        with self._turnwire.streams.room(caller.principal):
            return await self._open(scope, caller, record, cursor, wire, added)

    async def _open(
        self, scope: Request, caller: Caller, record: TurnRecord, cursor: Cursor, wire: Wire, added: Headers
    ) -> TurnStream:
        location = f"{scope.get('root_path', '')}/v1/turns/{record.id}/events"
        headers = stream_headers(wire, record, location, added)
        after = cursor.position if await self._is_ours(record, cursor) else None
        return TurnStream(self._turnwire.streams, self._turnwire.runner, caller, record, after, wire, headers)

    async def _is_ours(self, record: TurnRecord, cursor: Cursor) -> bool:
        """Whether the position is one that this log has given out, so that it can be gone on from."""
        if cursor.position > record.last_position:
            return False
        if cursor.epoch is None or cursor.position == 0:
            return True
        try:
            events = await self._turnwire.store.read(record.id, cursor.position - 1, 1)
        except EventsGoneError:
            return True
        return bool(events) and events[0].epoch == cursor.epoch

    async def _long_poll(self, send: Send, record: TurnRecord, cursor: Cursor, wait: str, added: Headers) -> None:
        """For proxies that buffer: what there is after a position, or what comes within the time."""
        try:
            seconds = min(float(wait), _MOST_WAIT_SECONDS)
        except ValueError:
            raise HttpError(422, "invalid_request", "wait: not a number of seconds") from None
        if not await self._is_ours(record, cursor):
            raise HttpError(409, "reset", "after is not a position of this log; read again from after=0")
        events = await self._turnwire.store.read(record.id, cursor.position, 1_000)
        if not events and record.phase != "ended" and seconds > 0:
            following = follow(self._turnwire.store, record.id, cursor.position)
            try:
                async with asyncio.timeout(seconds):
                    events = await anext(following)
            except TimeoutError:
                pass
            finally:
                await following.aclose()
        after = events[-1].position if events else cursor.position
        is_done = events[-1].is_last if events else record.phase == "ended" and after >= record.last_position
        body = b'{"events":[%b],"after":%d,"done":%b}' % (
            b",".join(logged_json(logged) for logged in events),
            after,
            b"true" if is_done else b"false",
        )
        await respond_json(send, 200, body, added)

    async def session_events(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> SessionStream:
        """All turns of a session, whole and in order, also those that others start, for as long as one listens."""
        caller.needs("read")
        turnwire = self._turnwire
        session_id = check_id(path_of(scope).split("/")[3])
        cursor = parse_session_cursor(query_of(scope), headers)
        session = await turnwire.store.find_session(caller.principal, session_id)
        last = None
        if cursor is not None:
            last = await turnwire.store.find_turn(caller.principal, cursor[0])
            if last.session_id != session.id:
                raise TurnNotFoundError(cursor[0])
        content_type = b"content-type", SSE_CHAT.media_type.encode("ascii")
        start = [*added, *_STREAM_HEADERS, content_type, _session_header(session.id)]
        after = cursor[1] if cursor else 0
        if last is not None and after > last.last_position:
            after = None
        with turnwire.streams.room(caller.principal):
            return SessionStream(turnwire.streams, turnwire.store, caller, session.id, last, after, start)

    async def chat(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """Starts a turn, or joins the one the key names, and answers when it has ended."""
        caller.needs("write")
        turnwire = self._turnwire
        body = parse_message(await read_json(receive, headers))
        accepted = await turnwire.start(caller.principal, body, idempotency_key(headers))
        turn_id = accepted.record.id
        turnwire.runner.reader_joined(turn_id)
        ended = asyncio.create_task(self._ended(turn_id))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            turnwire.runner.reader_left(turn_id, by_client=not ended.done())
            ended.cancel()
            gone.cancel()
        if ended.done() and not ended.cancelled():
            ended.result()
            record = await turnwire.store.find_turn(caller.principal, turn_id)
            state = await turnwire.state(record)
            failure = turn_error(state)
            if failure is not None:
                raise failure
            await respond_json(send, 200, ascii_json(answer_of(state)), [*added, *_turn_headers(record)])

    async def _ended(self, turn_id: str) -> None:
        async for _ in follow(self._turnwire.store, turn_id):
            pass


_STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]


def _session_header(session_id: str) -> tuple[bytes, bytes]:
    return b"x-session-id", session_id.encode("ascii")


def _turn_headers(record: TurnRecord) -> Headers:
    return [(b"x-turn-id", record.id.encode("ascii")), _session_header(record.session_id)]


def stream_headers(wire: Wire, record: TurnRecord, location: str, added: Headers) -> Headers:
    return [
        *added,
        *_STREAM_HEADERS,
        (b"content-type", wire.media_type.encode("ascii")),
        *_turn_headers(record),
        (b"location", location.encode("ascii")),
    ]


def idempotency_key(headers: dict[bytes, bytes]) -> str | None:
    text = headers.get(b"idempotency-key", b"").decode("latin-1").strip()
    if len(text) > 255:
        raise HttpError(422, "invalid_request", "Idempotency-Key: longer than 255 characters")
    return text or None


async def read_json(receive: Receive, headers: dict[bytes, bytes]) -> bytes:
    """A body that says it is JSON; anything else a web page could send without asking."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        raise HttpError(415, "unsupported_media_type", "send the body as `Content-Type: application/json`")
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, "disconnected", "the request was not complete")
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
