"""Pumps: one turn on one wire, encoded once for all its readers.

A pump keeps a short window of frames at the end of the log. A reader holds only its position; while that is in the
window, one write sends it everything it does not have yet. A reader that is behind the window reads the log itself, at
its own pace, until it has caught up. A reader that is ahead of the window, on a wire that keeps state, waits until the
pump has read that far.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from turnwire.core import metrics
from turnwire.core.contracts.wires import Wire
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent, now_ms
from turnwire.core.log.follow import Follower
from turnwire.core.log.turns import TurnRecord
from turnwire.server.streams.connection import StreamConnection
from turnwire.server.streams.resume import Void, settled_encoder
from turnwire.server.streams.stored_log import StateReader, StoredLogWriter

logger = logging.getLogger("turnwire.streams")

_WRITE_BYTES = 64 * 1024
_WINDOW_FRAMES = 128
_WINDOW_BYTES = 512 * 1024


class TurnPump:
    """One turn on one wire, from `start` on, without the `void` events."""

    __slots__ = (
        "_created_at",
        "_encode",
        "_follower",
        "_joined",
        "_on_closed",
        "_opened_at",
        "_pausing",
        "_readers",
        "_size",
        "base",
        "encoder",
        "frames",
        "has_ended",
        "pause",
        "store",
        "turn_id",
        "void",
        "wire",
    )

    def __init__(
        self,
        store: StateReader,
        record: TurnRecord,
        wire: Wire,
        start: int,
        void: Void,
        on_closed: Callable[["TurnPump"], None],
    ) -> None:
        self.store = store
        self.turn_id = record.id
        self.wire = wire
        self.void = void
        self.encoder = settled_encoder(wire, void)
        self.base = start
        """The position before the first frame of the window."""
        self.frames: list[bytes] = []
        self.has_ended = False
        self.pause = b""
        """The last bytes of the readers' streams while the turn waits for a person; empty while it does not."""
        self._size = 0
        self._pausing: asyncio.Task[None] | None = None
        self._encode = self.encoder.frame
        self._readers: list[TurnReader] = []
        self._on_closed = on_closed
        self._joined: tuple[int, int, bytes] = (0, 0, b"")
        # None once the first token was seen.
        self._created_at: int | None = record.created_at
        self._opened_at = now_ms()
        self._follower = Follower(store, record.id, start, self._take, self._fail)

    def add(self, reader: "TurnReader") -> None:
        self._readers.append(reader)
        reader.advance()

    def remove(self, reader: "TurnReader") -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        if not self._readers:
            self._close()

    def next_piece(self, position: int) -> tuple[bytes, int]:
        """Return the bytes to write to a reader at a position, and its position after them."""
        start, end = position - self.base, len(self.frames)
        if self._size > _WRITE_BYTES:
            end, size = start, 0
            while end < len(self.frames) and (size := size + len(self.frames[end])) <= _WRITE_BYTES:
                end += 1
            end = max(end, start + 1)
        # Readers mostly move together, so one join serves the next reader too.
        first, last, body = self._joined
        if first != position or last != self.base + end:
            body = b"".join(self.frames[start:end])
            self._joined = position, self.base + end, body
        return body, self.base + end

    @property
    def head(self) -> int:
        return self.base + len(self.frames)

    def _take(self, events: Sequence[LoggedEvent], is_last: bool) -> None:
        try:
            frames = [self._encode(events[0])] if len(events) == 1 else list(map(self._encode, events))
        except RestartedError:
            self._break()
            return
        self.has_ended = is_last
        readers = self._readers
        # The only reader needs no window while it keeps up.
        if self.frames or len(readers) != 1 or not readers[0].take(frames, is_last):
            self._add_to_window(frames)
        if self._created_at is not None:
            self._time_first_token(events)

    def _add_to_window(self, frames: list[bytes]) -> None:
        self.frames += frames
        self._size += sum(map(len, frames))
        if self.wire.keeps_state:
            self._check_pause()
        for reader in tuple(self._readers):
            reader.advance()
        if len(self._readers) == 1 or len(self.frames) > _WINDOW_FRAMES or self._size > _WINDOW_BYTES:
            self._trim()

    def _time_first_token(self, events: Sequence[LoggedEvent]) -> None:
        for logged in events:
            if logged.is_token:
                if self._created_at is not None and logged.at >= self._opened_at:
                    seconds = (now_ms() - self._created_at) / 1000
                    metrics.FIRST_TOKEN_DELIVERED.observe(seconds)
                    for reader in self._readers:
                        metrics.STREAM_FIRST_TOKEN.observe(seconds, self.wire.name, reader.connection.route)
                self._created_at = None
                return

    def _check_pause(self) -> None:
        self.pause = b""
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None
        if self.encoder.pause():
            self._pausing = asyncio.create_task(self._pause())

    async def _pause(self) -> None:
        # These events may be just the end of a page; the turn waits only if the log ends here too.
        try:
            is_end = not await self.store.read(self.turn_id, self.head, 1)
        except Exception as error:
            self._fail(error)
            return
        if is_end:
            self.pause = self.encoder.pause()
            for reader in tuple(self._readers):
                reader.advance()

    def _trim(self) -> None:
        """Drop the frames that every reader has, and, if that is not enough, the oldest of the others."""
        drop = min((reader.position for reader in self._readers), default=self.head) - self.base
        drop = min(max(drop, 0), len(self.frames))  # Some may be behind the window, some ahead of it.
        size = self._size - sum(map(len, self.frames[:drop]))
        while size > _WINDOW_BYTES:
            size -= len(self.frames[drop])
            drop += 1
        del self.frames[:drop]
        self.base += drop
        self._size = size

    def _fail(self, error: Exception) -> None:
        logger.error("turn %s can no longer be followed", self.turn_id, exc_info=error)
        self._break()

    def _break(self) -> None:
        """Close the pump, and break its readers' connections, so that they come back to another pump."""
        self._close()
        for reader in tuple(self._readers):
            reader.connection.abort()

    def _close(self) -> None:
        if self._pausing is not None:
            self._pausing.cancel()
        self._follower.close()
        self._on_closed(self)


class TurnReader:
    """One reader of a turn: a position and a connection."""

    __slots__ = ("_catching_up", "connection", "position", "pump")

    def __init__(self, pump: TurnPump, connection: StreamConnection, after: int) -> None:
        self.pump = pump
        self.connection = connection
        self.position = after
        self._catching_up: asyncio.Task[None] | None = None
        connection.on_writable = self.advance
        if pump.wire.keeps_state:
            connection.takes_heartbeat = self._takes_heartbeat
        pump.add(self)

    def close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
        self.connection.detach()
        self.pump.remove(self)

    def take(self, frames: list[bytes], is_last: bool) -> bool:
        """Write new frames that continue at the reader's position. Return False if they must wait in the window."""
        pump, connection = self.pump, self.connection
        if self._catching_up is not None or connection.is_blocked or connection.is_finished:
            return False
        if self.position != pump.base or pump.wire.keeps_state:
            return False
        body = b"".join(frames)
        if len(body) > _WRITE_BYTES:
            return False
        self.position = pump.base = self.position + len(frames)
        connection.write(body, last=is_last)
        return True

    def advance(self) -> None:
        """Write all frames that the reader does not have, as far as the connection has room."""
        pump, connection = self.pump, self.connection
        if self._catching_up is not None or connection.is_blocked or connection.is_finished:
            return  # A blocked reader holds no frames; this is called again when there is room.
        if self.position < pump.base:
            self._catching_up = asyncio.create_task(self._catch_up())
            return
        head = pump.base + len(pump.frames)
        while self.position < head and not connection.is_blocked and not connection.is_finished:
            if self.position == head - 1:
                body, self.position = pump.frames[-1], head
            else:
                body, self.position = pump.next_piece(self.position)
            connection.write(body, last=pump.has_ended and self.position == head)
        if pump.pause and self.position == head and not connection.is_blocked:
            connection.write(pump.pause, last=True)

    def _takes_heartbeat(self) -> bool:
        return self.position == self.pump.head and self.pump.encoder.takes_heartbeat

    async def _catch_up(self) -> None:
        pump = self.pump
        writer = StoredLogWriter(pump.store, pump.turn_id, self.connection, self.position, pump.void)
        try:
            while self.position < pump.base and not self.connection.is_finished:
                await writer.write_page()
                self.position = writer.position
        except Exception:
            logger.exception("a reader of turn %s could not catch up", pump.turn_id)
            self.connection.abort()
        finally:
            self._catching_up = None
        self.advance()
