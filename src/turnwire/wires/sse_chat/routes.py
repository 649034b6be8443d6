"""The routes of `sse_chat`, the events of any turn on any wire, and `POST /chat`, which waits for the answer."""

import asyncio

from msgspec.structs import replace

from turnwire.core.contracts.stores import LogReader
from turnwire.core.contracts.wires import Wire
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.fairness import FairSlots
from turnwire.server.errors import HttpError, invalid_request
from turnwire.server.messages import (
    Cursor,
    MessageBody,
    parse_cursor,
    parse_offset,
    parse_session_cursor,
)
from turnwire.server.request import Request
from turnwire.server.router import Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.streams.connection import StreamConnection
from turnwire.server.streams.resume import (
    BYTES,
    FRAMES,
    ResumePoint,
    find_cursor,
    find_point,
    is_in_log,
    is_void,
    void_of,
)
from turnwire.server.streams.stored_log import StateReader, StoredLogWriter
from turnwire.server.streams.stream import (
    SessionSource,
    Stream,
    StreamSource,
    session_header,
    stream_from_first_frame,
    stream_turn,
)
from turnwire.server.turns import budget_header, logged_json, remaining_budget, start_turn
from turnwire.wires.conversation import respond_with_answer
from turnwire.wires.frames import BaseEncoder, StatefulWire
from turnwire.wires.sse_chat.encoder import SseChat

SSE_CHAT = SseChat()
_MAX_WAIT_SECONDS = 60
_KEY = Parameter("Idempotency-Key", "header", "The same key again joins the same turn.")
_ID = Parameter("id", "path", "Our id, or your own.")
_LAST_ID = Parameter("Last-Event-ID", "header", "The last id received; the stream continues after it.")
_EVENTS = {"200": response("The turn's events", "text/event-stream")}

_CHAT = RouteGroup("chat", body=MessageBody, takes_files=True)
_TURNS = RouteGroup("turns", takes_slot=False)
_SESSIONS = RouteGroup("sessions", takes_slot=False)


@_CHAT.route(
    "POST",
    "/chat",
    "Send a message, and get the whole answer when it is complete",
    parameters=[_KEY],
    responses={"200": response("The answer", "application/json")},
)
async def chat(request: Request, services: Services) -> None:
    await respond_with_answer(request, services, await request.parse_body(MessageBody))


@_CHAT.route(
    "POST", "/chat/stream", "Send a message, and stream the answer", parameters=[_KEY, _LAST_ID], responses=_EVENTS
)
async def chat_stream(request: Request, services: Services) -> Stream:
    """Start or join a turn, and stream it."""
    body = await request.parse_body(MessageBody)
    cursor = parse_cursor({}, request.headers)
    with services.streams.room(request.caller.principal):
        accepted = await start_turn(services, request.caller.principal, body, request.idempotency_key)
        request.added += budget_header(await remaining_budget(services, request.caller.principal))
        point = await _find_position(services.store, accepted.record, SSE_CHAT, cursor)
        return stream_turn(request, services, accepted.record, SSE_CHAT, point)


@_TURNS.route(
    "GET",
    "/v1/turns/{id}/events",
    "A turn's events from any position, live or finished",
    parameters=[
        _ID,
        _LAST_ID,
        Parameter("after", "query", "The position to continue after, if there is no Last-Event-ID."),
        Parameter("offset", "query", "How many bytes you have, on a text wire."),
        Parameter("wire", "query", "The protocol to write them in; `sse_chat` by default."),
        Parameter("wait", "query", "Answer with JSON; wait this many seconds if there is nothing yet."),
    ],
    responses={
        **_EVENTS,
        "204": response("The turn has ended and you have all of it"),
        "410": response("On a text wire: its events are past their retention"),
        "416": response("There are not so many bytes, or they are void"),
    },
)
async def turn_events(request: Request, services: Services) -> Stream | None:
    """Stream a turn from any position on any wire, live or finished; or answer with JSON if there is a `wait`."""
    turn_id, query = request.id_param(), request.query
    cursor, offset, wire = parse_cursor(query, request.headers), parse_offset(query), _wire(services, query)
    if offset is not None and (not wire.keeps_state or cursor.position or "wait" in query):
        raise invalid_request("offset: only on a text wire, and without a position or `wait`")
    record = await services.store.find_turn(request.caller.principal, turn_id)
    if "wait" in query:
        await _long_poll(request, services, record, cursor)
        return None
    by_frame = wire.numbers_frames and b"last-event-id" in request.headers
    point = await _find_resume_point(services.store, record, wire, cursor, offset=offset, by_frame=by_frame)
    if point is not None and point.is_end and not point.rest:
        # Only this status stops a browser's EventSource from reconnecting.
        await request.respond(204)
        return None
    with services.streams.room(request.caller.principal):
        if point is None:
            return stream_from_first_frame(request, services, record, wire)
        return stream_turn(request, services, record, wire, point)


@_TURNS.route(
    "GET",
    "/v1/turns/{id}/log.jsonl",
    "All committed events of a turn's log, one line of JSON each",
    parameters=[_ID],
    responses={"200": response("The log", "application/jsonl")},
)
async def turn_log(request: Request, services: Services) -> Stream:
    record = await services.store.find_turn(request.caller.principal, request.id_param())
    with services.streams.room(request.caller.principal):
        return stream_log(request, services, record)


async def _long_poll(request: Request, services: Services, record: TurnRecord, cursor: Cursor) -> None:
    """Answer with the events after a position, or with those that come within `wait` seconds."""
    try:
        seconds = min(float(request.query["wait"]), _MAX_WAIT_SECONDS)
    except ValueError:
        raise invalid_request("wait: not a number of seconds") from None
    if not await is_in_log(services.store, record, cursor):
        raise _not_in_log()
    principal = request.caller.principal
    async with services.requests.slot(principal):
        events = await services.store.read(record.id, cursor.position, 1_000)
    if not events and record.phase != "ended" and seconds > 0:
        with services.streams.room(principal):  # A request that waits counts as a stream.
            events = await _next_events(services, record, cursor, seconds)
    after = events[-1].position if events else cursor.position
    is_done = events[-1].is_last if events else record.phase == "ended" and after >= record.last_position
    body = b'{"events":[%b],"after":%d,"done":%b}' % (
        b",".join(logged_json(logged) for logged in events),
        after,
        b"true" if is_done else b"false",
    )
    async with services.requests.slot(principal):
        await request.respond_json_bytes(200, body)
        await request.answer_taken(services.settings.write_timeout)


async def _next_events(services: Services, record: TurnRecord, cursor: Cursor, seconds: float) -> list[LoggedEvent]:
    """Return the next events, or none if none come in time."""
    following = follow(services.store, record.id, cursor.position)
    try:
        async with asyncio.timeout(seconds):
            return await anext(following)
    except TimeoutError:
        return []
    finally:
        await following.aclose()


@_SESSIONS.route(
    "GET",
    "/v1/sessions/{id}/events",
    "All turns of a session, as they happen",
    parameters=[_ID, _LAST_ID, Parameter("after", "query", "`<turn_id>:<position>`")],
    responses=_EVENTS,
)
async def session_events(request: Request, services: Services) -> Stream:
    """Stream all turns of a session, each whole and in order, for as long as the client reads."""
    session_id, principal, store = request.id_param(), request.caller.principal, services.store
    cursor = parse_session_cursor(request.query, request.headers)
    session = await store.find_session(principal, session_id)
    last = None
    if cursor is not None:
        last = await store.find_turn(principal, cursor[0])
        if last.session_id != session.id:
            raise TurnNotFoundError(cursor[0])
    after = cursor[1] if cursor else 0
    if last is not None and after > last.last_position:
        after = None
    with services.streams.room(principal):
        source = SessionSource(store, session.id, last, after, SSE_CHAT.session_encoder)
        return Stream(request, services, SSE_CHAT, source, [session_header(session.id)])


def _wire(services: Services, query: dict[str, str]) -> Wire:
    build = services.wires.get(query.get("wire", SSE_CHAT.name))
    if build is None:
        names = ", ".join(services.wires)
        raise HttpError(422, "unknown_wire", f"wire: unknown; use one of {names}")
    try:
        return build(query)
    except ValueError as error:
        raise invalid_request(str(error)) from None


# Resume points, of any wire: after a position of the log, a frame, or a byte


async def _find_resume_point(
    store: LogReader, record: TurnRecord, wire: Wire, cursor: Cursor, *, offset: int | None, by_frame: bool
) -> ResumePoint | None:
    """Return where a client continues: after a byte, a frame or a position; None for one that has nothing yet.

    Raises HttpError 409, 410, 416.
    """
    if not wire.keeps_state:
        return await _find_position(store, record, wire, cursor)
    if by_frame:
        return await find_point(store, record.id, wire, FRAMES, cursor.position)
    if offset:
        return await find_point(store, record.id, wire, BYTES, offset)
    return await _find_text_position(store, record, cursor) if cursor.position else None


async def _find_position(store: LogReader, record: TurnRecord, wire: Wire, cursor: Cursor) -> ResumePoint:
    """Return the point after a position, on a wire that keeps no state."""
    point = await find_cursor(store, record, cursor)
    waits = point.control is None and not point.is_end and cursor.position == record.last_position
    return replace(point, rest=wire.opening) if waits else point


async def _find_text_position(store: LogReader, record: TurnRecord, cursor: Cursor) -> ResumePoint:
    """Return the point after a position of a wire that has no control frames, so that errors are raised instead."""
    if not await is_in_log(store, record, cursor):
        raise _not_in_log()
    if record.phase == "ended" and cursor.position == record.last_position:
        return ResumePoint(cursor.position, is_end=True)
    void = await void_of(store, record.id)
    if is_void(tuple(span[:-1] for span in void), cursor.position):
        raise _not_in_log()
    return ResumePoint(cursor.position, void=void)


def _not_in_log() -> HttpError:
    return HttpError(409, "reset", "after is not a position of this log; read again from after=0")


def routes() -> list[Route]:
    return [*_CHAT.routes, *_TURNS.routes, *_SESSIONS.routes]


# The download of a log


class LogFile(StatefulWire):
    """The wire of a log's download: one line of JSON for each event, with its position, epoch and time.

    It is a stream like any other: counted, written page by page at the reader's pace, and dropped when the reader
    stalls. It has no control frames: a download that cannot go on is broken off.
    """

    name = key = "log_file"
    media_type = "application/jsonl"
    keeps_state = False
    heartbeat = b""

    def encoder(self) -> "_LineEncoder":
        return _LineEncoder()


class _LineEncoder(BaseEncoder):
    takes_heartbeat = False

    def frame(self, logged: LoggedEvent) -> bytes:
        return logged_json(logged) + b"\n"


class FairReader:
    """Reads of a log that take a slot each, so that many downloads of one principal delay others by a few pages."""

    def __init__(self, store: StateReader, slots: FairSlots, principal: str) -> None:
        self._store = store
        self._slots = slots
        self._principal = principal
        self.watch = store.watch
        self.turn_state = store.turn_state

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        async with self._slots.slot(self._principal):
            return await self._store.read(turn_id, after, limit, epoch)


class LogSource(StreamSource):
    """The committed events of a turn, at least up to the last one at the time of the request."""

    waits = True

    def __init__(self, store: StateReader, record: TurnRecord) -> None:
        self._store = store
        self._record = record

    async def wait(self) -> None:
        # A log that cannot be read is an error, and never a shorter log.
        await self._store.read(self._record.id, 0, 1)

    async def write(self, connection: StreamConnection) -> None:
        connection.takes_heartbeat = lambda: False
        writer = StoredLogWriter(self._store, self._record.id, connection, 0)
        while not connection.is_finished and writer.position < self._record.last_position:
            await writer.write_page()
        if not connection.is_blocked:
            connection.write(b"", last=True)


def stream_log(request: Request, services: Services, record: TurnRecord) -> Stream:
    """Open the download of a turn's log."""
    name = f'attachment; filename="turn-{record.id}.jsonl"'
    headers = [(b"content-disposition", name.encode("ascii"))]
    source = LogSource(FairReader(services.store, services.requests, request.caller.principal), record)
    return Stream(request, services, LogFile(), source, headers, caching=[(b"cache-control", b"no-store")])
