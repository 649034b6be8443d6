"""A log from the store, written page by page at the pace of its reader.

It serves readers of an ended turn, and readers that are too far behind a running one. All pages have about the same
number of bytes, however large their events are, because a blocked reader keeps a page in memory.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from turnwire.core import metrics
from turnwire.core.contracts.stores import LogReader, Store
from turnwire.core.contracts.wires import Encoder, Gap
from turnwire.core.errors import EventsGoneError, NotFoundError, RestartedError
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.server.streams.connection import StreamConnection
from turnwire.server.streams.resume import Void, encoder_at

logger = logging.getLogger("turnwire.streams")

_WRITE_BYTES = 64 * 1024
_PAGE_BYTES = 2 * _WRITE_BYTES
_PAGE_EVENTS = 4_000
_FIRST_PAGE_EVENTS = 64


EncoderFor = Callable[[str], Encoder]
"""Makes the encoder of one turn, by its id, in a stream of several turns."""


class StateReader(LogReader, Protocol):
    async def turn_state(self, turn_id: str) -> TurnState | None: ...


class StoredLogWriter:
    """One reader's pass over a log. With an `encoder` the stream has several turns, and does not end with this one."""

    def __init__(
        self,
        store: StateReader,
        turn_id: str,
        connection: StreamConnection,
        after: int,
        void: Void = (),
        encoder: Encoder | None = None,
    ) -> None:
        self.position = after
        self.has_ended = False
        self._void = void
        self._encoder = encoder
        self._continues = encoder is not None
        self._store = store
        self._turn_id = turn_id
        self._connection = connection
        self._page_events = _FIRST_PAGE_EVENTS

    async def write_page(self) -> None:
        try:
            pieces = await self._read_page()
        except EventsGoneError as gone:
            await self._write_gap(gone)
            return
        except RestartedError:
            self._connection.abort()
            return
        for piece, position, is_last in pieces:
            if self._connection.is_finished:
                return
            await self._connection.written(piece, last=is_last and not self._continues)
            self.position, self.has_ended = position, is_last

    async def _read_page(self) -> list[tuple[bytes, int, bool]]:
        """Return the pieces to write, each with the position after it and whether it is the last."""
        wire = self._connection.wire
        if self._encoder is None:
            self._encoder = await encoder_at(self._store, self._turn_id, wire, self.position, self._void)
        events = await self._store.read(self._turn_id, self.position, self._page_events)
        frames = list(map(self._encoder.frame, events))
        pieces: list[tuple[bytes, int, bool]] = []
        start = size = total = 0
        for end, frame in enumerate(frames, start=1):
            size += len(frame)
            if size >= _WRITE_BYTES or end == len(frames):
                newest = events[end - 1]
                pieces.append((b"".join(frames[start:end]), newest.position, newest.is_last))
                start, size, total = end, 0, total + size
        if wire.keeps_state:
            total = sum(len(logged.body) for logged in events)  # Many events may make few bytes.
        if events:
            fitting = _PAGE_BYTES * len(events) // max(total, 1)
            self._page_events = max(1, min(fitting, _PAGE_EVENTS))
        return pieces

    async def _write_gap(self, gone: EventsGoneError) -> None:
        metrics.GAPS.add()
        state = await self._store.turn_state(self._turn_id)
        frame = self._connection.wire.control(Gap(self.position, gone.first_kept, state or TurnState()))
        if frame is None:
            self._connection.abort()
        else:
            await self._connection.written(frame)
        self.position = gone.first_kept - 1


class EndedTurnReader:
    """One reader of a turn that has ended."""

    __slots__ = ("_task",)

    def __init__(
        self, store: StateReader, turn_id: str, connection: StreamConnection, after: int, void: Void = ()
    ) -> None:
        writer = StoredLogWriter(store, turn_id, connection, after, void)
        self._task = asyncio.create_task(self._write_all(writer, turn_id, connection))

    def close(self) -> None:
        self._task.cancel()

    async def _write_all(self, writer: StoredLogWriter, turn_id: str, connection: StreamConnection) -> None:
        try:
            while not connection.is_finished:
                await writer.write_page()
        except Exception:
            logger.exception("turn %s could not be written to a reader", turn_id)
            connection.abort()


async def stream_session(
    store: Store,
    session_id: str,
    last: TurnRecord | None,
    position: int,
    connection: StreamConnection,
    encoder_for: EncoderFor,
) -> None:
    """Write the rest of the `last` turn after a position, then every later turn, until the session is deleted."""
    has_changed = asyncio.Event()
    unwatch = store.watch(session_id, lambda _: has_changed.set())
    try:
        turn = last
        while not connection.is_finished:
            if turn is not None and not (turn.phase == "ended" and position >= turn.last_position):
                await _write_turn(store, turn.id, position, connection, encoder_for(turn.id))
            has_changed.clear()
            next_turn = await store.next_turn(session_id, turn.id if turn else None)
            while next_turn is None:
                await has_changed.wait()
                has_changed.clear()
                await store.find_session(connection.caller.principal, session_id)
                next_turn = await store.next_turn(session_id, turn.id if turn else None)
            turn, position = next_turn, 0
    except NotFoundError:
        connection.write(b"", last=True)
    except Exception:
        logger.exception("the stream of session %s broke", session_id)
        connection.abort()
    finally:
        unwatch()


async def _write_turn(
    store: Store, turn_id: str, position: int, connection: StreamConnection, encoder: Encoder
) -> None:
    writer = StoredLogWriter(store, turn_id, connection, position, encoder=encoder)
    changed = asyncio.Event()
    unwatch = store.watch(turn_id, lambda _: changed.set())
    try:
        while not writer.has_ended and not connection.is_finished:
            changed.clear()
            before = writer.position
            await writer.write_page()
            if writer.position == before:
                await changed.wait()
    finally:
        unwatch()
