"""A stream that is about to be opened: all that is kept of the request that asked for it.

The request itself (its body, headers and query) is forgotten before the stream begins, because
a stream is open for minutes and there are thousands of them.
"""

import asyncio
import logging

from turnwire.assembly import SSE_CHAT
from turnwire.core import metrics
from turnwire.core.contracts import Reset, Store, Wire
from turnwire.core.errors import TurnwireError
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, http_error
from turnwire.server.guard import Headers
from turnwire.server.payloads import chat_error, json_headers
from turnwire.server.streams.connection import Connection, Receive, Send
from turnwire.server.streams.hub import StreamHub
from turnwire.server.streams.pump import TurnReader
from turnwire.server.streams.replay import StateReader, TurnReplay, stream_session
from turnwire.server.streams.resume import ResumePoint, first_word, void_of


class TurnStream:
    """One turn from a position; `after` is None if the client's position is not of this log."""

    __slots__ = ("_after", "_caller", "_headers", "_hub", "_record", "_runner", "_wire")

    def __init__(
        self,
        hub: StreamHub,
        runner: TurnRunner,
        caller: Caller,
        record: TurnRecord,
        after: int | None,
        wire: Wire,
        headers: Headers,
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._caller = caller
        self._record = record
        self._after = after
        self._wire = wire
        self._headers: Headers | None = headers

    async def run(self, receive: Receive, send: Send) -> None:
        # First of all: a hub that is being drained says goodbye to whoever connects.
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self._headers = None
        connection = self._hub.connect(send, self._wire, self._caller)
        self._runner.reader_joined(self._record)
        reader, left = None, True
        try:
            if self._after is None:
                connection.tell(Reset())
            elif self._after == self._record.last_position:
                connection.write(self._wire.opening)
            reader = self._hub.attach(self._record, self._after or 0, connection)
            left = await connection.closed(receive)
        finally:
            if reader is not None:
                reader.close()
            self._hub.disconnect(connection)
            self._runner.reader_left(self._record.id, by_client=left)


class SessionStream:
    """All turns of a session from a position of the `last` one seen; None if the position is not of that turn."""

    __slots__ = ("_after", "_caller", "_headers", "_hub", "_last", "_session_id", "_store")

    def __init__(
        self,
        hub: StreamHub,
        store: Store,
        caller: Caller,
        session_id: str,
        last: TurnRecord | None,
        after: int | None,
        headers: Headers,
    ) -> None:
        self._hub = hub
        self._store = store
        self._caller = caller
        self._session_id = session_id
        self._last = last
        self._after = after
        self._headers = headers

    async def run(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        connection = self._hub.connect(send, SSE_CHAT, self._caller)
        writing = None
        try:
            connection.write(SSE_CHAT.opening)
            if self._after is None:
                connection.tell(Reset())
            last = self._last if self._after is not None else None
            if last is not None:
                metrics.RESUMES.add()
            following = stream_session(self._store, self._session_id, last, self._after or 0, connection)
            writing = asyncio.create_task(following)
            await connection.closed(receive)
        finally:
            if writing is not None:
                writing.cancel()
            self._hub.disconnect(connection)


# A text stream that is about to be opened.


logger = logging.getLogger("turnwire.streams")


class TextStream:
    """One turn from a place in its log, at once; or from its start, when there is something to say.

    `patience` is how long that may take; `plain` are the headers of an answer that is an error.
    """

    def __init__(
        self,
        hub: StreamHub,
        runner: TurnRunner,
        store: StateReader,
        caller: Caller,
        record: TurnRecord,
        place: ResumePoint | None,
        patience: float,
        wire: Wire,
        headers: Headers,
        plain: Headers,
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._store = store
        self._caller = caller
        self._record = record
        self._place = place
        self._patience = patience
        self._wire = wire
        self._headers = headers
        self._plain = plain
        self._reader: TurnReader | TurnReplay | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        connection = self._hub.connect(send, self._wire, self._caller)
        self._runner.reader_joined(self._record)
        left = True
        beginning = asyncio.create_task(self._begin(connection, send))
        try:
            left = await connection.closed(receive)
        finally:
            beginning.cancel()
            if self._reader is not None:
                self._reader.close()
            self._hub.disconnect(connection)
            self._runner.reader_left(self._record.id, by_client=left)

    async def _begin(self, connection: Connection, send: Send) -> None:
        try:
            try:
                place = self._place or await self._beginning()
            except (TurnwireError, HttpError) as error:
                refusal = error if isinstance(error, HttpError) else http_error(error)
                await send(_start(refusal.status, json_headers(refusal.body, self._plain)))
                connection.write(refusal.body, last=True)
            else:
                await send(_start(200, self._headers))
                connection.write(place.rest, last=place.is_end)
                if not place.is_end:
                    self._reader = self._hub.attach(self._record, place.position, connection, place.void)
        except Exception:
            logger.exception("the text stream of turn %s could not begin", self._record.id)
            connection.abort()
        finally:
            self._place, self._headers, self._plain = None, [], []  # A stream is open for minutes.

    async def _beginning(self) -> ResumePoint:
        """The start of the log, as soon as there is something to say. Raises HttpError 500 if the turn has failed."""
        turn_id, word = self._record.id, None
        try:
            async with asyncio.timeout(self._patience):
                word = await first_word(self._store, turn_id, self._wire)
        except TimeoutError:
            pass
        if word is not None and word.is_last:
            state = await self._store.turn_state(turn_id)
            failure = chat_error(state) if state is not None else None
            if failure is not None:
                raise failure
        return ResumePoint(void=await void_of(self._store, turn_id))


def _start(status: int, headers: Headers) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": headers}
