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
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import ApprovalResponseEvent, DoneEvent, ReplyEvent, ToolResultEvent
from turnwire.core.log.follow import follow
from turnwire.server.streams.connection import Connection
from turnwire.server.streams.resume import (
    CountFinder,
    EncodedWalk,
    ResumePoint,
    Unit,
    Void,
    settled_encoder,
    walk_log,
)
from turnwire.server.streams.stream import StreamSource
from turnwire.wires.ai_sdk.frames import END, chunks_of


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


class _AnswerFinder(EncodedWalk):
    """Finds the segment that follows these answers; None while there is more to answer before it."""

    def __init__(self, wire: Wire, ids: set[str]) -> None:
        super().__init__(wire)
        self._ids = ids

    def begin(self) -> None:
        super().begin()
        self.point: ResumePoint | None = None
        self._is_answered = False

    def see(self, logged: LoggedEvent, frame: bytes) -> bool:
        if self.pause and logged.type in ("approval_response", "reply", "tool_result"):
            answer = logged.event
            assert isinstance(answer, ApprovalResponseEvent | ReplyEvent | ToolResultEvent)
            answered = answer.question_id if isinstance(answer, ReplyEvent) else answer.call_id
            self._is_answered = self._is_answered or answered in self._ids
        if self._is_answered and self.begins_segment(frame):
            self.point, self._is_answered = self.segment_start(logged, frame), False
        return False


async def find_answer(store: LogReader, turn_id: str, wire: Wire, ids: set[str]) -> ResumePoint | None:
    """Return the start of the segment that follows the answers to calls and questions.

    None while there is more to answer before it. Raises HttpError 410.
    """
    finder = _AnswerFinder(wire, ids)
    void = await walk_log(store, turn_id, finder)
    return None if finder.point is None else replace(finder.point, void=void)


def _count_chunks(body: bytes) -> int:
    return sum(1 for _ in chunks_of(body))


def _skip_chunks(body: bytes, count: int) -> bytes:
    """Return what follows so many chunks; the end mark counts as none, and is kept if nothing follows it."""
    while count:
        count -= not body.startswith(END)
        body = body[body.index(b"\n\n") + 2 :]
    return body.removeprefix(END) or body


_CHUNKS = Unit("chunk", "read on with startIndex={}", _count_chunks, _skip_chunks)


class _ChunkFinder(CountFinder):
    """Finds a chunk by its index in the segment that begins at a position, from the end if the index is negative."""

    def __init__(self, wire: Wire, first: int, index: int) -> None:
        super().__init__(wire, _CHUNKS, None)
        self._first = first
        self._index = index

    def begin(self) -> None:
        super().begin()
        self._tail: deque[tuple[LoggedEvent, bytes, int]] = deque()
        self._start_at(0)

    def _start_at(self, start: int) -> None:
        self.start = start
        self.count = start + self._index if self._index >= 0 else None

    def see(self, logged: LoggedEvent, frame: bytes) -> bool:
        is_before = logged.position < self._first
        if is_before:
            self.count = None
        elif logged.position == self._first and frame.startswith(self.pause):
            # The pause belongs to the segment before.
            self._start_at(self.seen + _count_chunks(self.pause))
        before = self.seen
        super().see(logged, frame)
        if is_before:
            self._start_at(self.seen)
        elif self._index < 0:
            self._keep(logged, frame, before)
        return False

    def _keep(self, logged: LoggedEvent, frame: bytes, before: int) -> None:
        """Keep the last frames, from the frame with the chunk that the negative index names."""
        self._tail.append((logged, frame, before))
        while len(self._tail) > 1 and self._tail[1][2] <= self.seen + self._index:
            self._tail.popleft()

    def found(self) -> tuple[ResumePoint, int]:
        """Return the point before the chunk, and the index of the last chunk. Raises HttpError 416."""
        if self.count is not None:
            self.check(self.count)
        elif self._tail:
            logged, frame, before = self._tail[0]
            rest = _skip_chunks(frame, max(self.start, self.seen + self._index) - before)
            self.point = ResumePoint(logged.position, rest, is_end=logged.is_last)
        return self.point, self.seen - self.start - 1


async def find_chunk(store: LogReader, run: RunId, wire: Wire, index: int) -> tuple[ResumePoint, int]:
    """Return the resume point before a chunk, from the end if it is negative, and the index of the last chunk.

    Raises HttpError 410 or 416.
    """
    finder = _ChunkFinder(wire, run.first, index)
    void = await walk_log(store, run.turn_id, finder)
    point, last = finder.found()
    return replace(point, void=void), last


class AnswerSource(StreamSource):
    """The bare text of a turn's answer.

    A turn that does not complete breaks the connection, because plain text cannot say that it failed.
    """

    def __init__(self, store: LogReader, turn_id: str, void: Void) -> None:
        self._store = store
        self._turn_id = turn_id
        self._void = void

    async def write(self, connection: Connection) -> None:
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
