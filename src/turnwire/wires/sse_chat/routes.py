"""The routes that stream, and `POST /chat`, which waits as long as a stream would.

Plain ASGI endpoints: each is called with the request, who is calling, and the headers to add, and
either answers or returns the stream to be opened.
"""

import asyncio
import re

from turnwire.app import Turnwire
from turnwire.assembly import SSE_CHAT, WIRES
from turnwire.core.codec import ascii_json
from turnwire.core.contracts import Wire
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.follow import follow
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import (
    STREAM_HEADERS,
    OpenStream,
    Request,
    Routes,
    answered,
    budget_header,
    idempotency_key,
    is_ours,
    read_json,
    session_header,
    stream_headers,
    text_stream,
    turn_headers,
)
from turnwire.server.guard import Headers
from turnwire.server.messages import (
    Cursor,
    check_id,
    parse_cursor,
    parse_message,
    parse_offset,
    parse_session_cursor,
    path_of,
    query_of,
)
from turnwire.server.payloads import answer_of, answer_status, logged_json, respond, respond_json, turn_error
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.resume import ResumePoint, place_of, place_of_frame, void_of
from turnwire.server.streams.stream import SessionStream, TurnStream
from turnwire.wires.ag_ui.encoder import AgUi

_MOST_WAIT_SECONDS = 60


class StreamRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire
        self.routes: Routes = (
            ("POST", re.compile("/chat"), self.chat),
            ("POST", re.compile("/chat/stream"), self.chat_stream),
            ("GET", re.compile("/v1/turns/[^/]+/events"), self.turn_events),
            ("GET", re.compile("/v1/sessions/[^/]+/events"), self.session_events),
        )

    async def chat_stream(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TurnStream:
        """Starts a turn, or joins the one the key names, and streams it."""
        caller.needs("write")
        body = parse_message(await read_json(receive, headers))
        cursor = parse_cursor({}, headers)
        with self._turnwire.streams.room(caller.principal):
            accepted = await self._turnwire.start(caller.principal, body, idempotency_key(headers))
            added = [*added, *await budget_header(self._turnwire, caller)]
            return await self._open(scope, caller, accepted.record, cursor, SSE_CHAT, added)

    async def turn_events(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> OpenStream | None:
        """Any turn from any position, on any wire, live or finished; with `wait`, as JSON."""
        caller.needs("read")
        turn_id = check_id(path_of(scope).split("/")[3])
        query = query_of(scope)
        cursor, offset = parse_cursor(query, headers), parse_offset(query)
        wire = _wire_of(query)
        if offset is not None and (not wire.keeps_state or cursor.position or "wait" in query):
            raise HttpError(422, "invalid_request", "offset: only on a text wire, and without a position or `wait`")
        record = await self._turnwire.store.find_turn(caller.principal, turn_id)
        if "wait" in query:
            await self._long_poll(send, record, cursor, query["wait"], added)
            return None
        place = None
        if wire.keeps_state:
            if wire.name == AgUi.name and b"last-event-id" in headers:
                # The ids of this wire are numbers of frames, not positions.
                place = await place_of_frame(self._turnwire.store, record.id, wire, cursor.position)
            else:
                place = await self._place(record, cursor, offset or 0, wire)
            is_read = place is not None and place.is_end and not place.rest
        else:
            is_read = record.phase == "ended" and cursor.position >= record.last_position
            is_read = is_read and await is_ours(self._turnwire.store, record, cursor)
        if is_read:
            # A browser's EventSource comes back after every close; only this stops it.
            await respond(send, 204, b"", added)
            return None
        with self._turnwire.streams.room(caller.principal):
            if wire.keeps_state:
                return text_stream(self._turnwire, scope, caller, record, place, wire, added)
            return await self._open(scope, caller, record, cursor, wire, added)

    async def _open(
        self, scope: Request, caller: Caller, record: TurnRecord, cursor: Cursor, wire: Wire, added: Headers
    ) -> TurnStream:
        headers = stream_headers(scope, wire, record, added)
        after = cursor.position if await is_ours(self._turnwire.store, record, cursor) else None
        return TurnStream(self._turnwire.streams, self._turnwire.runner, caller, record, after, wire, headers)

    async def _place(self, record: TurnRecord, cursor: Cursor, offset: int, wire: Wire) -> ResumePoint | None:
        """Where a client that has something already goes on; None for one that has nothing.

        What other wires have a word for is refused here, before the first byte. Raises HttpError 409, 410, 416.
        """
        store = self._turnwire.store
        if offset:
            return await place_of(store, record.id, wire, offset)
        if not cursor.position:
            return None
        if not await is_ours(self._turnwire.store, record, cursor):
            raise _reset()
        if record.phase == "ended" and cursor.position == record.last_position:
            return ResumePoint(cursor.position, is_end=True)
        void = await void_of(store, record.id)
        if any(cursor.position in span[:-1] for span in void):
            raise _reset()
        return ResumePoint(cursor.position, void=void)

    async def _long_poll(self, send: Send, record: TurnRecord, cursor: Cursor, wait: str, added: Headers) -> None:
        """For proxies that buffer: what there is after a position, or what comes within the time."""
        try:
            seconds = min(float(wait), _MOST_WAIT_SECONDS)
        except ValueError:
            raise HttpError(422, "invalid_request", "wait: not a number of seconds") from None
        if not await is_ours(self._turnwire.store, record, cursor):
            raise _reset()
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
        start = [*added, *STREAM_HEADERS, content_type, session_header(session.id)]
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
        body = parse_message(await read_json(receive, headers))
        answer = await answered(self._turnwire, receive, caller, body, idempotency_key(headers))
        if answer is None:
            return
        record, state = answer
        failure = turn_error(state)
        if failure is not None:
            raise failure
        told = answer_of(state, await self._turnwire.budget(caller.principal))
        await respond_json(send, answer_status(state), ascii_json(told), [*added, *turn_headers(record)])


def _wire_of(query: dict[str, str]) -> Wire:
    build = WIRES.get(query.get("wire", SSE_CHAT.name))
    if build is None:
        raise HttpError(422, "unknown_wire", f"wire: there is none of this name; there is {', '.join(WIRES)}")
    try:
        return build(query)
    except ValueError as error:
        raise HttpError(422, "invalid_request", str(error)) from None


def _reset() -> HttpError:
    return HttpError(409, "reset", "after is not a position of this log; read again from after=0")
