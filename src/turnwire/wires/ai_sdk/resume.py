"""Resume points as clients of the AI SDK name them.

A turn that waits for a person or its client is sent in several messages, each a *segment* of its stream; an answer
begins the next one. Within a segment a client counts chunks, from 0.
"""

from collections import deque
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.stores import LogReader
from turnwire.core.contracts.wires import Wire
from turnwire.core.errors import RestartedError, TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import DoneEvent
from turnwire.core.log.follow import follow
from turnwire.server.streams.connection import StreamConnection
from turnwire.server.streams.resume import (
    PositionFinder,
    ResumePoint,
    Unit,
    Void,
    find_segment,
    settled_encoder,
    walk_log,
)
from turnwire.server.streams.stream import StreamSource
from turnwire.wires.ai_sdk.encoder import chunks_of
from turnwire.wires.frames import DONE


class RunId(Struct, frozen=True):
    """A turn, and the position where the client's segment begins; 0 for the whole turn."""

    turn_id: str
    first: int = 0

    def __str__(self) -> str:
        return f"{self.turn_id}:{self.first}" if self.first else self.turn_id


def parse_run_id(text: str) -> RunId:
    turn_id, _, first = text.rpartition(":")
    if turn_id and first.isascii() and first.isdecimal() and len(first) < 10:
        return RunId(turn_id, int(first))
    return RunId(text)


async def find_answer(store: LogReader, turn_id: str, wire: Wire, ids: set[str]) -> ResumePoint | None:
    """Return the start of the segment that follows the answers to calls and questions.

    None while there is more to answer before it. Raises HttpError 410.
    """
    return await find_segment(store, turn_id, wire, lambda segment: not ids.isdisjoint(segment.answers))


def _count_chunks(body: bytes) -> int:
    return sum(1 for _ in chunks_of(body))


def _skip_chunks(body: bytes, count: int) -> bytes:
    """Return what follows so many chunks; the end mark counts as none, and is kept if nothing follows it."""
    while count:
        count -= not body.startswith(DONE)
        body = body[body.index(b"\n\n") + 2 :]
    return body.removeprefix(DONE) or body


_CHUNKS = Unit("chunk", "read on with startIndex={}", _count_chunks, _skip_chunks, per_segment=True)


class _ChunkFinder(PositionFinder):
    """Finds a chunk by its index in the segment that begins at a position, from the end if the index is negative."""

    def __init__(self, wire: Wire, first: int, index: int) -> None:
        super().__init__(wire, _CHUNKS, lambda each: each.start + max(0, index) if each.position == first else None)
        self._index = index

    def begin(self) -> None:
        super().begin()
        self._tail: deque[tuple[LoggedEvent, bytes, int]] = deque()

    def see(self, logged: LoggedEvent, frame: bytes) -> None:
        before = self.seen
        super().see(logged, frame)
        if self.segment and self._index < 0:
            # Kept from the frame with the chunk that the negative index names.
            self._tail.append((logged, frame, before))
            while len(self._tail) > 1 and self._tail[1][2] <= self.seen + self._index:
                self._tail.popleft()

    def found(self) -> ResumePoint:
        """Return the point before the chunk. Raises HttpError 416."""
        if not self._tail:
            self.check(self.count)
            return self.point
        logged, frame, before = self._tail[0]
        rest = _skip_chunks(frame, max(self.start, self.seen + self._index) - before)
        return ResumePoint(logged.position, rest, is_end=logged.is_last)


async def find_chunk(store: LogReader, run: RunId, wire: Wire, index: int) -> tuple[ResumePoint, int]:
    """Return the resume point before a chunk, from the end if it is negative, and the index of the last chunk.

    Raises TurnNotFoundError, HttpError 410 or 416.
    """
    finder = _ChunkFinder(wire, run.first, index)
    void = await walk_log(store, run.turn_id, finder)
    if finder.segment is None:
        raise TurnNotFoundError(str(run))
    return replace(finder.found(), void=void), finder.seen - finder.start - 1


class AnswerSource(StreamSource):
    """The bare text of a turn's answer.

    A turn that does not complete breaks the connection, because plain text cannot say that it failed.
    """

    def __init__(self, store: LogReader, turn_id: str, void: Void) -> None:
        self._store = store
        self._turn_id = turn_id
        self._void = void

    async def write(self, connection: StreamConnection) -> None:
        encoder = settled_encoder(connection.wire, self._void)
        try:
            async with aclosing(follow(self._store, self._turn_id)) as batches:
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


def _has_failed(newest: LoggedEvent) -> bool:
    return newest.is_last and isinstance(newest.event, DoneEvent) and newest.event.outcome in ("failed", "interrupted")
