"""What the parts of the store share: the connections, the clock, and whom to tell."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwire.stores.postgres.connections import PATIENCE_SECONDS, Connections, DatabaseConnection
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.writer import PostgresWriter

T = TypeVar("T")
# The server's own clock, in ms, unless a test brings another. All leases are by it: no two machines agree on a time.
NOW = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"


class StorePart:
    def __init__(
        self, connections: Connections, hub: CommitNotifier, lease: float, clock: Callable[[], float] | None
    ) -> None:
        self._connections = connections
        self._leasing = connections
        self._hub = hub
        self._writer = PostgresWriter(connections, hub)
        self._lease_ms = int(lease * 1000)
        self._clock = clock

    async def _run(
        self, call: Callable[[DatabaseConnection, bool], Awaitable[T]], patience: float = PATIENCE_SECONDS
    ) -> T:
        return await self._connections.run(call, patience)

    def _now(self) -> int | None:
        return None if self._clock is None else int(self._clock() * 1000)


async def lock_principal(connection: DatabaseConnection, principal: str) -> None:
    """Nobody else changes the sessions and turns of this principal until the transaction is over."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnwire ' || $1, 0))", principal)
