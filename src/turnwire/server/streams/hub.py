"""Every open stream of this process: limits, heartbeats, timeouts, and shutdown.

One ticker serves all streams; a stream has no timer of its own.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from turnwire.core import metrics
from turnwire.core.contracts.wires import Reconnect, Wire
from turnwire.core.errors import ShuttingDownError, TooManyStreamsError
from turnwire.core.log.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.streams.connection import Send, StreamConnection
from turnwire.server.streams.pump import TurnPump, TurnReader
from turnwire.server.streams.resume import ResumePoint, Void
from turnwire.server.streams.stored_log import EndedTurnReader, StateReader
from turnwire.settings import Settings

_NEAR_EVENTS = 256

Reader = TurnReader | EndedTurnReader


class StreamHub:
    """The open streams of a process, and the pumps that write to them."""

    def __init__(self, store: StateReader, settings: Settings, valid_key: Callable[[str], object]) -> None:
        """`valid_key` returns the API key with this id; None if it is not valid any more."""
        self._store = store
        self._valid_key = valid_key
        self._max_open = settings.max_open_streams
        self.tick = min(1.0, settings.heartbeat / 3, settings.write_timeout / 3, settings.stream_lifetime / 3)
        self._heartbeat_ticks = round(settings.heartbeat / self.tick)
        self._write_ticks = round(settings.write_timeout / self.tick)
        self._lifetime_ticks = round(settings.stream_lifetime / self.tick)
        # In the order in which they were opened.
        self.connections: dict[StreamConnection, None] = {}
        self._open_by: Counter[str] = Counter()
        self._pumps: dict[tuple[str, str, Void], TurnPump] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._draining = False

    def open(self) -> None:
        self._ticker = asyncio.create_task(self._tick_forever())

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
        for connection in tuple(self.connections):
            connection.abort()

    @property
    def open_count(self) -> int:
        return len(self.connections)

    @property
    def pump_count(self) -> int:
        return len(self._pumps)

    @contextmanager
    def room(self, principal: str) -> Generator[None]:
        """Count a stream while it is being prepared. Raises TooManyStreamsError, ShuttingDownError."""
        if self._draining:
            raise ShuttingDownError
        if self._open_by[principal] >= self._max_open:
            raise TooManyStreamsError(self._max_open)
        self._open_by[principal] += 1
        try:
            yield
        finally:
            self._release(principal)

    def opened_by(self, principal: str) -> int:
        """Return how many streams and sockets of this process the principal has open, or waits for."""
        return self._open_by[principal]

    def _release(self, principal: str) -> None:
        self._open_by[principal] -= 1
        if not self._open_by[principal]:
            del self._open_by[principal]

    def connect(
        self, send: Send, wire: Wire, caller: Caller, route: str, *, has_begun: bool = True
    ) -> StreamConnection:
        connection = StreamConnection(send, wire, caller, route)
        connection.has_begun = has_begun
        self.register(connection)
        return connection

    def register(self, connection: StreamConnection) -> None:
        """Manage a connection until it is disconnected."""
        self.connections[connection] = None
        self._open_by[connection.caller.principal] += 1
        if self._draining:
            connection.finish(_reconnect())

    def disconnect(self, connection: StreamConnection) -> None:
        self.connections.pop(connection, None)
        self._release(connection.caller.principal)

    def attach(self, record: TurnRecord, point: ResumePoint, connection: StreamConnection) -> Reader | None:
        """Write a turn's log to the connection, from a resume point to its end.

        Returns the reader that writes, which the caller must close; None if the point is the end of the log.
        """
        if point.control is not None:
            connection.send_control(point.control)
        if point.rest or point.is_end:
            connection.write(point.rest, last=point.is_end)
        if point.is_end:
            return None
        if point.position > 0:
            metrics.RESUMES.add()
        if record.phase == "ended":
            return EndedTurnReader(self._store, record.id, connection, point.position, point.void)
        return TurnReader(self._pump_for(record, connection.wire, point), connection, point.position)

    def _pump_for(self, record: TurnRecord, wire: Wire, point: ResumePoint) -> TurnPump:
        key = record.id, wire.key, point.void
        pump = self._pumps.get(key)
        if pump is None:
            # The window begins at the reader if it is near the end; a reader that is far behind reads the log first.
            is_near = record.last_position - point.position <= _NEAR_EVENTS
            start = point.position if is_near else record.last_position
            if wire.keeps_state:
                start = 0
            pump = self._pumps[key] = TurnPump(self._store, record, wire, start, point.void, self._drop_pump)
        return pump

    def _drop_pump(self, pump: TurnPump) -> None:
        key = pump.turn_id, pump.wire.key, pump.void
        if self._pumps.get(key) is pump:  # After a failure a new pump may have taken its place.
            del self._pumps[key]

    def drain(self) -> None:
        """End every stream with a request to reconnect, to another process or to this one after its restart."""
        self._draining = True
        for connection in tuple(self.connections):
            connection.finish(_reconnect())

    def close_key(self, key_id: str) -> None:
        """Break the streams of a revoked key."""
        for connection in tuple(self.connections):
            if connection.caller.key_id == key_id:
                connection.abort()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self.tick)
            self.check_all()

    def check_all(self) -> None:
        """Count a tick of every stream, and do what is due."""
        for connection in tuple(self.connections):
            self._check(connection)

    def _check(self, connection: StreamConnection) -> None:
        connection.age_ticks += 1
        if connection.is_finished and not connection.is_blocked:
            return
        key_id = connection.caller.key_id
        if key_id is not None and self._valid_key(key_id) is None:
            connection.abort()
        elif connection.is_blocked:
            connection.blocked_ticks += 1
            if connection.blocked_ticks >= self._write_ticks:
                if not connection.is_finished:
                    metrics.SLOW_READERS.add()
                connection.abort()
        elif connection.age_ticks >= self._lifetime_ticks:
            connection.finish(_reconnect())
        elif connection.has_begun:
            connection.quiet_ticks += 1
            if connection.quiet_ticks >= self._heartbeat_ticks and connection.takes_heartbeat():
                connection.write(connection.wire.heartbeat)


def _reconnect() -> Reconnect:
    # Spread out, so that clients do not all reconnect in the same moment.
    return Reconnect(random.randint(200, 2_000))
