"""Resume points: one walk over a log finds where a client continues, on every wire that keeps state.

The encoder of such a wire needs a log from its start, even for a reader that already has a part of it. Events that a
restart has made void are left out, because these wires cannot take back what they have sent.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator
from contextlib import aclosing, contextmanager

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core import metrics
from turnwire.core.contracts.stores import Accepted, LogReader
from turnwire.core.contracts.wires import Control, Encoder, Reset, Wire
from turnwire.core.errors import EventsGoneError, RestartedError
from turnwire.core.log.codec import LoggedEvent, decode_event
from turnwire.core.log.events import ApprovalResponseEvent, ReplyEvent, RestartEvent, ToolResultEvent
from turnwire.core.log.follow import follow, read_all
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.messages import Cursor

Void = tuple[range, ...]
"""Positions that restarts have made void, those of the restarts themselves included."""


class ResumePoint(Struct, frozen=True):
    """A point where a reader continues: after a position, of whose frame it still needs the `rest`.

    `control` is sent before anything else. With `is_end` nothing follows the rest.
    """

    position: int = 0
    rest: bytes = b""
    void: Void = ()
    is_end: bool = False
    control: Control | None = None


_ANSWERS = ("approval_response", "reply", "tool_result")

START = ResumePoint()
"""The resume point of a turn that was just created: its log need not be read."""


# Encoders that skip void events


class _SettledEncoder:
    """An encoder that skips void events."""

    def __init__(self, encoder: Encoder, void: Void) -> None:
        self._encoder = encoder
        self._void = void

    @property
    def takes_heartbeat(self) -> bool:
        return self._encoder.takes_heartbeat

    def frame(self, logged: LoggedEvent) -> bytes:
        return b"" if is_void(self._void, logged.position) else self._encoder.frame(logged)

    def pause(self) -> bytes:
        return self._encoder.pause()


def settled_encoder(wire: Wire, void: Void) -> Encoder:
    return _SettledEncoder(wire.encoder(), void) if void else wire.encoder()


def is_void(void: Void, position: int) -> bool:
    return any(position in span for span in void)


async def encoder_at(store: LogReader, turn_id: str, wire: Wire, position: int, void: Void) -> Encoder:
    """Return an encoder that can continue after a position."""
    encoder = settled_encoder(wire, void)
    if wire.keeps_state and position > 0:
        async with aclosing(read_all(store, turn_id)) as pages:
            async for events in pages:
                for logged in events:
                    if logged.position > position:
                        return encoder
                    encoder.frame(logged)
                if events[-1].position == position:
                    return encoder
    return encoder


# Cursors, on wires that keep no state


async def is_in_log(store: LogReader, record: TurnRecord, cursor: Cursor) -> bool:
    """Return True if a cursor is a position that this log has given out, so that a client can continue there."""
    if cursor.position > record.last_position:
        return False
    if cursor.epoch is None or cursor.position == 0:
        return True
    try:
        events = await store.read(record.id, cursor.position - 1, 1)
    except EventsGoneError:
        return True
    return bool(events) and events[0].epoch == cursor.epoch


async def find_cursor(store: LogReader, record: TurnRecord, cursor: Cursor) -> ResumePoint:
    """Return the point after a cursor; the start, after a reset, if the cursor is not one of this log."""
    if not await is_in_log(store, record, cursor):
        return ResumePoint(control=Reset())
    is_end = record.phase == "ended" and cursor.position == record.last_position
    return ResumePoint(cursor.position, is_end=is_end)


# The walk


class LogVisitor:
    """Looks for something in a log; this one for nothing."""

    def begin(self) -> None:
        """Forget the last walk: another one begins at the start of the log."""

    def visit(self, logged: LoggedEvent) -> None:
        """Look at the next event."""

    def restarted(self, span: range) -> None:
        """Take note that these positions, some of which were visited, are void; the walk begins again without them."""


async def walk_log(store: LogReader, turn_id: str, visitor: LogVisitor) -> Void:
    """Show a visitor every event that counts, from the start of the log, and return what is void.

    Void positions are known only at the end of the log, so a log is read to its end, and again after each restart in
    it; a log without restarts is read once. Raises HttpError 410.
    """
    void: Void = ()
    while (span := await _walk(store, turn_id, visitor, void)) is not None:
        visitor.restarted(span)
        void = (*void, span)
    return void


async def _walk(store: LogReader, turn_id: str, visitor: LogVisitor, void: Void) -> range | None:
    """Walk until the first restart that is not known to be void; return the positions that it voids."""
    visitor.begin()
    with whole_log(turn_id):
        async with aclosing(read_all(store, turn_id)) as pages:
            async for events in pages:
                for logged in events:
                    if void and is_void(void, logged.position):
                        continue
                    if logged.type == "restart":
                        restart = decode_event(logged.body)
                        assert isinstance(restart, RestartEvent)
                        return range(restart.from_position + 1, logged.position + 1)
                    visitor.visit(logged)
    return None


async def void_of(store: LogReader, turn_id: str) -> Void:
    """Return the void positions of a log. Raises HttpError 410."""
    return await walk_log(store, turn_id, LogVisitor())


@contextmanager
def whole_log(turn_id: str) -> Generator[None]:
    """Turn EventsGoneError into HttpError 410, for readers that need the whole log."""
    try:
        yield
    except EventsGoneError:
        metrics.GAPS.add()
        message = f"events of turn {turn_id!r} are past their retention, and this wire needs all; read its snapshot"
        raise HttpError(410, "events_gone", message) from None


# Finders of resume points


class Unit(Struct, frozen=True):
    """A unit that clients count in: `count` returns the number of units in some bytes, `skip` the bytes after some.

    `advice` tells a client how to continue after a number of units, which `format` puts in. With `per_segment` a client
    counts from the start of its segment, otherwise from the start of the turn.
    """

    name: str
    advice: str
    count: Callable[[bytes], int]
    skip: Callable[[bytes, int], bytes]
    per_segment: bool = False


def count_frames(body: bytes) -> int:
    return body.count(b"\n\n")


def skip_frames(body: bytes, count: int) -> bytes:
    for _ in range(count):
        body = body[body.index(b"\n\n") + 2 :]
    return body


BYTES = Unit("byte", "read from offset={}", len, lambda body, count: body[count:])
FRAMES = Unit("frame", "read on after frame {}", count_frames, skip_frames)


class EncodedWalk(LogVisitor):
    """A visitor that looks at what a wire sends.

    `pause` is what the encoder would have ended the stream with before the event that is visited.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def begin(self) -> None:
        self.encoder = self._wire.encoder()
        self.pause = b""

    def visit(self, logged: LoggedEvent) -> None:
        self.see(logged, self.encoder.frame(logged))
        self.pause = self.encoder.pause()

    def see(self, logged: LoggedEvent, frame: bytes) -> None:
        """Look at an event and its frame."""


class Segment(Struct, frozen=True):
    """A part of a turn's stream, up to the next wait.

    It has a number from 1, the position of its first event, and `start` units before it. `answers` are the ids of the
    calls and questions that were answered before it.
    """

    number: int = 1
    position: int = 0
    start: int = 0
    answers: frozenset[str] = frozenset()


Target = Callable[[Segment], int | None]
"""Returns how many units of the whole stream a client has, if it continues in this segment, else None."""


class PositionFinder(EncodedWalk):
    """Finds where a client continues: after `count` units, in the last segment that `target` accepts.

    `segment` is that segment, and `seen` the number of all units so far. `kept` is the number of units that no restart
    has made void; None if none were.
    """

    def __init__(self, wire: Wire, unit: Unit, target: Target) -> None:
        super().__init__(wire)
        self._unit = unit
        self._target = target
        self.kept: int | None = None

    def begin(self) -> None:
        super().begin()
        self.segments: list[Segment] = []
        self.segment: Segment | None = None
        self.count = self.seen = 0
        self.point = START
        self.is_found = False
        self._answers: set[str] = set()
        self._marks: list[tuple[int, int]] = []
        self._add_segment(Segment())

    def _add_segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        if (count := self._target(segment)) is not None:
            self.segment, self.count, self.is_found = segment, count, False

    def see(self, logged: LoggedEvent, frame: bytes) -> None:
        if self.pause:
            self._note_wait(logged, frame)
        before, units = self.seen, self._unit.count(frame)
        self.seen += units
        if units:
            self._marks.append((logged.position, before))
        if not self.is_found:
            self.point = self._point(logged, frame, before)

    def _note_wait(self, logged: LoggedEvent, frame: bytes) -> None:
        """Note an answer, and the segment that begins if it was the last."""
        if logged.type in _ANSWERS:
            answer = logged.event
            assert isinstance(answer, ApprovalResponseEvent | ReplyEvent | ToolResultEvent)
            self._answers.add(answer.question_id if isinstance(answer, ReplyEvent) else answer.call_id)
        if frame.startswith(self.pause):
            start = self.seen + self._unit.count(self.pause)
            self._add_segment(Segment(len(self.segments) + 1, logged.position, start, frozenset(self._answers)))
            self._answers.clear()

    def _point(self, logged: LoggedEvent, frame: bytes, before: int) -> ResumePoint:
        rest = b""
        if self.segment and (self.seen > self.count or (logged.is_last and self.seen == self.count)):
            self.is_found = True
            rest = self._unit.skip(frame, self.count - before)
        return ResumePoint(logged.position, rest, is_end=logged.is_last)

    def restarted(self, span: range) -> None:
        index = bisect_left(self._marks, (span.start, 0))
        if index < len(self._marks):
            kept = self._marks[index][1]
            self.kept = kept if self.kept is None else min(self.kept, kept)

    @property
    def start(self) -> int:
        """Return the number of units before those that the client counts."""
        return self.segment.start if self.segment and self._unit.per_segment else 0

    def check(self, had: int) -> None:
        """Raise HttpError 416 if there are fewer than `count` units, or if a restart voided some of the first `had`."""
        unit, total = self._unit, self.seen - self.start
        if self.kept is not None and self.kept < had:
            kept = max(0, self.kept - self.start)
            message = f"a restart made void what followed {unit.name} {kept}; drop it, and {unit.advice.format(kept)}"
            raise bad_offset(kept, message)
        if not self.is_found and self.seen + unit.count(self.pause) < self.count:
            message = f"there are {total} {unit.name}s so far; {unit.advice.format(total)}, or from the start"
            raise bad_offset(total, message)


async def find_point(store: LogReader, turn_id: str, wire: Wire, unit: Unit, count: int) -> ResumePoint:
    """Return the point after so many units. Raises HttpError 410 or 416."""
    finder = PositionFinder(wire, unit, lambda segment: count if segment.number == 1 else None)
    void = await walk_log(store, turn_id, finder)
    finder.check(count)
    return replace(finder.point, void=void)


async def find_segment(
    store: LogReader, turn_id: str, wire: Wire, accepts: Callable[[Segment], bool]
) -> ResumePoint | None:
    """Return the start of the last segment that is accepted; None if none is. Raises HttpError 410."""
    finder = PositionFinder(wire, FRAMES, lambda segment: segment.start if accepts(segment) else None)
    void = await walk_log(store, turn_id, finder)
    if finder.segment is None:
        return None
    return replace(START if finder.segment.number == 1 else finder.point, void=void)


async def find_start(store: LogReader, accepted: Accepted) -> ResumePoint:
    """Return the start of a turn; the log of one that was just created is not read. Raises HttpError 410."""
    return START if accepted.created else ResumePoint(void=await void_of(store, accepted.record.id))


def bad_offset(size: int, message: str) -> HttpError:
    return HttpError(416, "bad_offset", message, headers={"Content-Range": f"bytes */{size}"}, size=size)


async def first_frame(store: LogReader, turn_id: str, wire: Wire) -> LoggedEvent | None:
    """Wait for the first event that the wire sends anything for. None if there was a restart before it.

    Raises HttpError 410.
    """
    encoder = wire.encoder()
    async with aclosing(follow(store, turn_id)) as following:
        try:
            with whole_log(turn_id):
                async for events in following:
                    for logged in events:
                        if encoder.frame(logged):
                            return logged
        except RestartedError:
            pass
    return None
