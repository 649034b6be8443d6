"""A stream that is about to be opened: all that is kept of the request that asked for it.

The request itself (its body, headers and query) is forgotten before the stream begins, because
a stream is open for minutes and there are thousands of them.
"""

import asyncio

from turnwire.assembly import SSE_CHAT
from turnwire.core import metrics
from turnwire.core.contracts import Reset, Store, Wire
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.guard import Headers
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.hub import StreamHub
from turnwire.server.streams.sessions import stream_session


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
