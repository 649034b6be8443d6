"""One streamed response, from its first byte to its end.

A stream keeps as little as it can of the request that opened it, because it is open for minutes and there are thousands
of them.
"""

import asyncio
import logging
from time import monotonic

from turnwire.core import metrics
from turnwire.core.contracts.stores import Store
from turnwire.core.contracts.wires import Reset, Wire
from turnwire.core.errors import TurnwireError
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError, http_error
from turnwire.server.guard import Headers
from turnwire.server.request import Request, body_headers
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send, StreamConnection
from turnwire.server.streams.hub import Reader, StreamHub
from turnwire.server.streams.resume import START, ResumePoint, first_frame, void_of
from turnwire.server.streams.stored_log import EncoderFor, StateReader, stream_session
from turnwire.server.turns import chat_error

logger = logging.getLogger("turnwire.streams")

STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
_DEFAULT_WIRE = "sse_chat"
# A text stream waits for this long, so that a turn that fails at once is an HTTP error. Clients and proxies give up a
# response without a status after 30 seconds and more.
TEXT_START_SECONDS = 10.0
_NO_HEADERS: Headers = []


class StreamSource:
    """The content of a stream. If `waits`, the response starts after `wait`: with 200, or with the error it raised."""

    waits = False

    async def wait(self) -> None:
        """Wait until the response can start. Raises HttpError or TurnwireError, which is then the response."""

    def attach(self, connection: StreamConnection) -> Reader | None:
        """Return the reader that writes the content; None if `write` writes it."""
        return None

    async def write(self, connection: StreamConnection) -> None:
        """Write the content, unless a reader writes it."""


class Stream:
    """A response that a source writes. While it is open, the client counts as a reader of the turn `record`."""

    __slots__ = (
        "_caller",
        "_error_headers",
        "_headers",
        "_hub",
        "_reader",
        "_record",
        "_route",
        "_runner",
        "_source",
        "_turn_id",
        "_wire",
    )

    def __init__(
        self,
        request: Request,
        services: Services,
        wire: Wire,
        source: StreamSource,
        headers: Headers,
        record: TurnRecord | None = None,
        caching: Headers = STREAM_HEADERS,
    ) -> None:
        self._hub = services.streams
        self._runner = services.runner
        self._caller = request.caller
        self._wire = wire
        self._route = request.route
        self._source: StreamSource | None = source
        content_type = b"content-type", wire.media_type.encode("ascii")
        self._headers = [*request.added, *caching, content_type, *headers]
        self._error_headers = [*request.added, *(turn_headers(record) if record and source.waits else ())]
        self._record = record
        self._turn_id = record.id if record else None
        self._reader: Reader | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        turn_id, left, opened_at = self._turn_id, True, monotonic()
        assert self._source is not None
        begins = not self._source.waits
        if begins:
            # Before connecting, because a hub that is draining writes the last frame to a new connection at once.
            await send(_start(200, self._headers))
        connection = self._hub.connect(send, self._wire, self._caller, self._route, has_begun=begins)
        if self._record is not None:
            self._runner.presence.join(self._record)
        self._record = None
        beginning: asyncio.Task[None] | None = None
        try:
            if begins:
                self._reader = self._source.attach(connection)
            if self._reader is None:
                beginning = asyncio.create_task(self._begin(connection, send))
            else:
                self._forget_request()
            left = await connection.closed(receive)
        finally:
            if beginning is not None:
                beginning.cancel()
            if self._reader is not None:
                self._reader.close()
            self._hub.disconnect(connection)
            metrics.STREAM_SECONDS.observe(monotonic() - opened_at, self._wire.name, self._route)
            if turn_id is not None:
                self._runner.presence.depart(turn_id, by_client=left)

    async def _begin(self, connection: StreamConnection, send: Send) -> None:
        source = self._source
        assert source is not None
        try:
            if source.waits:
                try:
                    await source.wait()
                except (TurnwireError, HttpError) as error:
                    refusal = error if isinstance(error, HttpError) else http_error(error)
                    await send(_start(refusal.status, [*self._error_headers, *body_headers(refusal.body)]))
                    connection.has_begun = True
                    connection.write(refusal.body, last=True)
                    return
                await send(_start(200, self._headers))
                connection.has_begun = True
                self._reader = source.attach(connection)
            await source.write(connection)
        except Exception:
            logger.exception("a stream of %s could not begin", self._turn_id or "a session")
            connection.abort()
        finally:
            self._forget_request()

    def _forget_request(self) -> None:
        self._source, self._headers, self._error_headers = None, _NO_HEADERS, _NO_HEADERS


def _start(status: int, headers: Headers) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": headers}


class TurnSource(StreamSource):
    """One turn from a resume point."""

    def __init__(self, hub: StreamHub, record: TurnRecord, point: ResumePoint) -> None:
        self._hub = hub
        self._record = record
        self._point = point

    def attach(self, connection: StreamConnection) -> Reader | None:
        return self._hub.attach(self._record, self._point, connection)


class FirstFrameSource(TurnSource):
    """One turn from its start, as soon as the wire has something to send; a turn that fails before is an error.

    After `TEXT_START_SECONDS` the stream begins in any case.
    """

    waits = True

    def __init__(self, hub: StreamHub, store: StateReader, record: TurnRecord, wire: Wire) -> None:
        super().__init__(hub, record, START)
        self._store = store
        self._wire = wire

    async def wait(self) -> None:
        turn_id, first = self._record.id, None
        try:
            async with asyncio.timeout(TEXT_START_SECONDS):
                first = await first_frame(self._store, turn_id, self._wire)
        except TimeoutError:
            pass
        if first is not None and first.is_last:
            state = await self._store.turn_state(turn_id)
            failure = chat_error(state) if state is not None else None
            if failure is not None:
                raise failure
        self._point = ResumePoint(void=await void_of(self._store, turn_id))


class SessionSource(StreamSource):
    """All turns of a session, after a position of the `last` one seen, for as long as the client reads.

    `after` is None if the client's position is not one of that turn; then the session is sent from its start.
    """

    def __init__(
        self, store: Store, session_id: str, last: TurnRecord | None, after: int | None, encoder_for: EncoderFor
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._last = last
        self._after = after
        self._encoder_for = encoder_for

    async def write(self, connection: StreamConnection) -> None:
        connection.write(connection.wire.opening)
        last, after = self._last, self._after
        if after is None:
            connection.send_control(Reset())
            last, after = None, 0
        if last is not None:
            metrics.RESUMES.add()
        await stream_session(self._store, self._session_id, last, after, connection, self._encoder_for)


def session_header(session_id: str) -> tuple[bytes, bytes]:
    return b"x-session-id", session_id.encode("ascii")


def turn_headers(record: TurnRecord) -> Headers:
    return [(b"x-turn-id", record.id.encode("ascii")), session_header(record.session_id)]


def location_header(request: Request, path: str) -> tuple[bytes, bytes]:
    """Return where the stream can be read again; `path` is relative to where the app is mounted."""
    return b"location", f"{request.root}{path}".encode("ascii")


def event_headers(request: Request, record: TurnRecord, wire: Wire) -> Headers:
    """Return the headers that say which turn a stream shows, and where it can be read again."""
    query = "" if wire.name == _DEFAULT_WIRE else f"?wire={wire.name}"
    return [*turn_headers(record), location_header(request, f"/v1/turns/{record.id}/events{query}")]


def stream_turn(
    request: Request,
    services: Services,
    record: TurnRecord,
    wire: Wire,
    point: ResumePoint,
    headers: Headers | None = None,
) -> Stream:
    """Open a turn's stream at a resume point."""
    if headers is None:
        headers = event_headers(request, record, wire)
    return Stream(request, services, wire, TurnSource(services.streams, record, point), headers, record)


def stream_from_first_frame(request: Request, services: Services, record: TurnRecord, wire: Wire) -> Stream:
    """Open a turn's stream from its start, as soon as the wire has something to send."""
    source = FirstFrameSource(services.streams, services.store, record, wire)
    return Stream(request, services, wire, source, event_headers(request, record, wire), record)
