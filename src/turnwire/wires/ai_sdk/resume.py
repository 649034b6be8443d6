"""Places in a stream as these clients name them.

A turn that waits for a person is told in several messages, each a *segment* of its stream; what was decided begins the
next one. Within a segment a client counts chunks, from 0.
"""

import asyncio
import logging
from contextlib import aclosing

from msgspec import Struct

from turnwire.core.codec import LoggedEvent, decode_event
from turnwire.core.contracts import LogReader, Store, Wire
from turnwire.core.errors import RestartedError
from turnwire.core.events import ApprovalResponseEvent, DoneEvent
from turnwire.core.follow import PAGE, follow
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers
from turnwire.server.streams.connection import Connection, Receive, Send
from turnwire.server.streams.hub import StreamHub
from turnwire.server.streams.resume import ResumePoint, Void, encoder_at, settled_encoder, void_of
from turnwire.wires.ai_sdk.encoder import AnswerText
from turnwire.wires.ai_sdk.frames import END, chunks_of

_RESPONSE_BODY = b'{"type":"approval_response"'


class RunId(Struct, frozen=True):
    """A turn, and the position where the segment begins that a client has asked for; 0 for the whole of it."""

    turn_id: str
    first: int = 0

    def __str__(self) -> str:
        return f"{self.turn_id}:{self.first}" if self.first else self.turn_id


def parse_run_id(text: str) -> RunId:
    turn_id, _, first = text.rpartition(":")
    if turn_id and first.isascii() and first.isdecimal() and len(first) < 10:
        return RunId(turn_id, int(first))
    return RunId(text)


async def place_of_decision(store: LogReader, turn_id: str, wire: Wire, decided: set[str]) -> ResumePoint | None:
    """The start of the segment that follows these decisions; None while there is more to decide before it.

    Raises HttpError 410.
    """
    void = await void_of(store, turn_id)
    encoder = settled_encoder(wire, void)
    found: ResumePoint | None = None
    position, paused, is_next = 0, b"", False
    try:
        while events := await store.read(turn_id, position, PAGE):
            for logged in events:
                said, position = encoder.frame(logged), logged.position
                if logged.body.startswith(_RESPONSE_BODY):
                    response = decode_event(logged.body)
                    if isinstance(response, ApprovalResponseEvent) and response.call_id in decided:
                        is_next = True
                if is_next and paused and said.startswith(paused):
                    found, is_next = ResumePoint(position, said[len(paused) :], void, logged.is_last), False
                paused = encoder.pause()
    except RestartedError:
        return await place_of_decision(store, turn_id, wire, decided)  # It has come since we looked.
    return found


async def place_of_chunk(store: LogReader, run: RunId, wire: Wire, index: int) -> tuple[ResumePoint, int]:
    """The place of a chunk, from the end if it is negative; and the index of the last chunk there is.

    Raises HttpError 410 or 416.
    """
    void = await void_of(store, run.turn_id)
    encoder = settled_encoder(wire, void)
    counts: list[tuple[int, int]] = []
    position, skipped, paused, is_end = 0, 0, b"", False
    try:
        while events := await store.read(run.turn_id, position, PAGE):
            for logged in events:
                said = encoder.frame(logged)
                position, is_end = logged.position, logged.is_last
                if position == run.first and said.startswith(paused):
                    skipped = sum(1 for _ in chunks_of(paused))
                if position >= run.first:
                    counts.append((position, sum(1 for _ in chunks_of(said))))
                paused = encoder.pause()
    except RestartedError:
        return await place_of_chunk(store, run, wire, index)  # It has come since we looked.
    total = sum(count for _, count in counts) - skipped
    index = max(0, total + index) if index < 0 else index
    if index > total + sum(1 for _ in chunks_of(paused)):
        raise HttpError(416, "bad_offset", f"there are {total} chunks so far; read from the start", size=total)
    place = ResumePoint(position, b"", void, is_end)
    left = index + skipped
    for at, count in counts:
        if left < count or (at == position and is_end):
            rest = await _rest(store, run.turn_id, wire, place, at, left)
            return ResumePoint(at, rest, void, is_end and at == position), total - 1
        left -= count
    return place, total - 1


async def _rest(store: LogReader, turn_id: str, wire: Wire, place: ResumePoint, at: int, count: int) -> bytes:
    """What a frame says after so many chunks, with the mark of the end if it has one."""
    encoder = await encoder_at(store, turn_id, wire, at - 1, place.void)
    (logged,) = await store.read(turn_id, at - 1, 1)
    said = encoder.frame(logged)
    while count:
        count -= not said.startswith(END)
        said = said[said.index(b"\n\n") + 2 :]
    return said.removeprefix(END) or said


# The bare text of an answer. A turn that does not complete breaks the connection: text has no word for it.


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
