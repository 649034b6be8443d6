"""What the parts of the store share: the connections, the clock, and whom to tell."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwire.stores.postgres.appending import Writer
from turnwire.stores.postgres.connections import PATIENCE_SECONDS, Connection, Connections
from turnwire.stores.postgres.following import Hub

T = TypeVar("T")
# The server's own clock, in ms, unless a test brings another. All leases are by it: no two machines agree on a time.
NOW = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"


class Part:
    def __init__(self, connections: Connections, hub: Hub, lease: float, clock: Callable[[], float] | None) -> None:
        self._connections = connections
        self._leasing = connections
        self._hub = hub
        self._writer = Writer(connections, hub)
        self._lease_ms = int(lease * 1000)
        self._clock = clock

    async def _run(self, call: Callable[[Connection, bool], Awaitable[T]], patience: float = PATIENCE_SECONDS) -> T:
        return await self._connections.run(call, patience)

    def _now(self) -> int | None:
        return None if self._clock is None else int(self._clock() * 1000)


async def lock_principal(connection: Connection, principal: str) -> None:
    """Nobody else changes the sessions and turns of this principal until the transaction is over."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnwire ' || $1, 0))", principal)
