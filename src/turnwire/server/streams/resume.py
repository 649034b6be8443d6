"""Reading a log before its stream is opened, for wires that keep state.

Such a wire's encoder is given a log from its start, whatever the reader has already; and what a
restart has made void is left out, because these wires cannot take back what they have said.
"""

from collections.abc import Generator
from contextlib import aclosing, contextmanager

from msgspec import Struct

from turnwire.core import metrics
from turnwire.core.codec import LoggedEvent, decode_event
from turnwire.core.contracts import Encoder, LogReader, Wire
from turnwire.core.errors import EventsGoneError, RestartedError
from turnwire.core.events import RestartEvent
from turnwire.core.follow import PAGE, follow
from turnwire.server.errors import HttpError

Void = tuple[range, ...]
"""Positions that count no more, those of the restarts themselves among them."""

_RESTART_BODY = b'{"type":"restart"'


class ResumePoint(Struct, frozen=True):
    """Where a reader goes on: after a position, of whose frame it still needs the `rest`.

    `is_end` says that nothing comes after that.
    """

    position: int = 0
    rest: bytes = b""
    void: Void = ()
    is_end: bool = False


class _SettledEncoder:
    """Says nothing about what is void."""

    def __init__(self, encoder: Encoder, void: Void) -> None:
        self._encoder = encoder
        self._void = void

    @property
    def takes_heartbeat(self) -> bool:
        return self._encoder.takes_heartbeat

    def frame(self, logged: LoggedEvent) -> bytes:
        if any(logged.position in span for span in self._void):
            return b""
        return self._encoder.frame(logged)

    def pause(self) -> bytes:
        return self._encoder.pause()


def settled_encoder(wire: Wire, void: Void) -> Encoder:
    return _SettledEncoder(wire.encoder(), void) if void else wire.encoder()


async def encoder_at(store: LogReader, turn_id: str, wire: Wire, position: int, void: Void) -> Encoder:
    """An encoder that has been given what it needs to go on after a position."""
    encoder, given = settled_encoder(wire, void), 0
    while wire.keeps_state and given < position:
        events = await store.read(turn_id, given, min(PAGE, position - given))
        for logged in events:
            encoder.frame(logged)
        given = events[-1].position
    return encoder


async def void_of(store: LogReader, turn_id: str) -> Void:
    """Raises HttpError 410."""
    void: list[range] = []
    position = 0
    with _whole(turn_id):
        while events := await store.read(turn_id, position, PAGE):
            for logged in events:
                if logged.body.startswith(_RESTART_BODY):
                    restart = decode_event(logged.body)
                    assert isinstance(restart, RestartEvent)
                    void.append(range(restart.from_position + 1, logged.position + 1))
            position = events[-1].position
    return tuple(void)


async def place_of(store: LogReader, turn_id: str, wire: Wire, offset: int) -> ResumePoint:
    """The place of a byte in a log. Raises HttpError 410 or 416."""
    void = await void_of(store, turn_id)
    first_void = min((span.start for span in void), default=None)
    encoder = settled_encoder(wire, void)
    position = size = 0
    is_end = False
    try:
        while events := await store.read(turn_id, position, PAGE):
            for logged in events:
                if logged.position == first_void and size < offset:
                    raise _begun_anew(size)
                frame = encoder.frame(logged)
                position, size, is_end = logged.position, size + len(frame), logged.is_last
                if size > offset:
                    return ResumePoint(position, frame[offset - size :], void, is_end)
    except RestartedError:
        return await place_of(store, turn_id, wire, offset)  # It has come since we looked.
    if size < offset:
        raise _bad_offset(size, f"there are {size} bytes so far; read from offset={size}, or from offset=0")
    return ResumePoint(position, b"", void, is_end)


async def place_of_frame(
    store: LogReader, turn_id: str, wire: Wire, count: int, *, had: int | None = None
) -> ResumePoint:
    """The place after so many frames, on a wire of server-sent events. Raises HttpError 410 or 416.

    `had` is how many of them the reader has itself, if it passes over some.
    """
    void = await void_of(store, turn_id)
    kept = await _frames_kept(store, turn_id, wire, void)
    if kept is not None and kept < (count if had is None else had):
        raise _bad_offset(kept, f"what followed frame {kept} was begun anew; drop it, and read on after frame {kept}")
    encoder = settled_encoder(wire, void)
    position = seen = 0
    is_end = False
    try:
        while events := await store.read(turn_id, position, PAGE):
            for logged in events:
                said = encoder.frame(logged)
                position, is_end = logged.position, logged.is_last
                frames = said.count(b"\n\n")
                if seen + frames > count:
                    return ResumePoint(position, after_frames(said, count - seen), void, is_end)
                seen += frames
    except RestartedError:
        return await place_of_frame(store, turn_id, wire, count)  # It has come since we looked.
    if seen + encoder.pause().count(b"\n\n") < count:
        raise _bad_offset(seen, f"there are {seen} frames so far; read from the start")
    return ResumePoint(position, b"", void, is_end)


async def _frames_kept(store: LogReader, turn_id: str, wire: Wire, void: Void) -> int | None:
    """How many frames are the same to all readers, whenever they read; None if no restart took back any."""
    told = [await _frames_before(store, turn_id, wire, void[:number], span) for number, span in enumerate(void)]
    return min((count for count in told if count is not None), default=None)


async def _frames_before(store: LogReader, turn_id: str, wire: Wire, void: Void, span: range) -> int | None:
    """What a reader had before a span that it was told of until the restart at its end; None if it said nothing.

    `void` is what had been taken back by then.
    """
    encoder, position, seen, restart = settled_encoder(wire, void), 0, 0, span.stop - 1
    while position < restart - 1:
        events = await store.read(turn_id, position, min(PAGE, restart - 1 - position))
        for logged in events:
            frames = encoder.frame(logged).count(b"\n\n")
            if frames and logged.position in span:
                return seen
            seen += frames
        position = events[-1].position
    return None


async def place_after_wait(store: LogReader, turn_id: str, wire: Wire) -> ResumePoint:
    """Where a client goes on that was told of a wait, and has had its decision taken: after the last one."""
    void = await void_of(store, turn_id)
    encoder = settled_encoder(wire, void)
    place, position, paused = ResumePoint(void=void), 0, b""
    while events := await store.read(turn_id, position, PAGE):
        for logged in events:
            said = encoder.frame(logged)
            position = logged.position
            if paused and logged.type != "approval_request" and said.startswith(paused):
                place = ResumePoint(position, said[len(paused) :], void, logged.is_last)
            paused = encoder.pause() if logged.type == "approval_request" else b""
    return place


def after_frames(said: bytes, count: int) -> bytes:
    for _ in range(count):
        said = said[said.index(b"\n\n") + 2 :]
    return said


async def first_word(store: LogReader, turn_id: str, wire: Wire) -> LoggedEvent | None:
    """Waits for the first event that the wire says anything about. None if there was a restart before it.

    Raises HttpError 410.
    """
    encoder = wire.encoder()
    async with aclosing(follow(store, turn_id)) as following:
        try:
            with _whole(turn_id):
                async for events in following:
                    for logged in events:
                        if encoder.frame(logged):
                            return logged
        except RestartedError:
            pass
    return None


@contextmanager
def _whole(turn_id: str) -> Generator[None]:
    try:
        yield
    except EventsGoneError:
        metrics.GAPS.add()
        message = f"events of turn {turn_id!r} are past their retention, and this wire needs all; read its snapshot"
        raise HttpError(410, "events_gone", message) from None


def _begun_anew(size: int) -> HttpError:
    return _bad_offset(size, f"what followed byte {size} was begun anew; drop it, and read from offset={size}")


def _bad_offset(size: int, message: str) -> HttpError:
    return HttpError(416, "bad_offset", message, headers={"Content-Range": f"bytes */{size}"}, size=size)
