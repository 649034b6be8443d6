"""The bare text of an answer. A turn that does not complete breaks the connection: text has no word for it."""

import asyncio
import logging
from contextlib import aclosing

from turnwire.core.contracts import Store
from turnwire.core.errors import RestartedError
from turnwire.core.events import DoneEvent
from turnwire.core.follow import follow
from turnwire.core.logged import LoggedEvent
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.guard import Headers
from turnwire.server.streams.connection import Connection, Receive, Send
from turnwire.server.streams.hub import StreamHub
from turnwire.server.streams.lookahead import Void, settled_encoder
from turnwire.wires.ai_sdk.answer import AnswerText

logger = logging.getLogger("turnwire.streams")

_WIRE = AnswerText()


class AnswerStream:
    """The answer of one turn, from its start."""

    def __init__(
        self,
        hub: StreamHub,
        runner: TurnRunner,
        store: Store,
        caller: Caller,
        record: TurnRecord,
        void: Void,
        headers: Headers,
    ) -> None:
        self._hub = hub
        self._runner = runner
        self._store = store
        self._caller = caller
        self._record = record
        self._void = void
        self._headers = [*headers, (b"content-type", _WIRE.media_type.encode("ascii"))]

    async def run(self, receive: Receive, send: Send) -> None:
        connection = self._hub.connect(send, _WIRE, self._caller)
        self._runner.reader_joined(self._record)
        writing, left = None, True
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            writing = asyncio.create_task(self._write(connection))
            left = await connection.closed(receive)
        finally:
            if writing is not None:
                writing.cancel()
            self._hub.disconnect(connection)
            self._runner.reader_left(self._record.id, by_client=left)

    async def _write(self, connection: Connection) -> None:
        encoder = settled_encoder(_WIRE, self._void)
        try:
            async with aclosing(follow(self._store, self._record.id)) as batches:
                async for events in batches:
                    has_failed = _has_failed(events[-1])
                    text = b"".join(map(encoder.frame, events))
                    await connection.written(text, last=events[-1].is_last and not has_failed)
                    if has_failed:
                        connection.abort()
                    if connection.is_finished:
                        return
        except RestartedError:
            connection.abort()
        except Exception:
            logger.exception("the answer of turn %s could not be written", self._record.id)
            connection.abort()


def _has_failed(newest: LoggedEvent) -> bool:
    return newest.is_last and isinstance(newest.event, DoneEvent) and newest.event.outcome in ("failed", "interrupted")
