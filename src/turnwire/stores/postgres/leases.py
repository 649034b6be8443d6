"""Named leases: at most one process holds a lease, until it releases the lease or does not renew it in time.

The clock is the database's. A process that takes a lease over raises its epoch, and a transaction that names an older
epoch is refused, so a process that was paused cannot write once another has taken its place.
"""

import os
import socket
from collections.abc import Sequence

from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import ShuttingDownError
from turnwire.core.ids import new_id
from turnwire.stores.postgres.connections import ConnectionPool

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CLAIM = f"""
    INSERT INTO turnwire.lease (name, holder, epoch, lease_until)
    SELECT name, $1, 1, {_NOW} + $2 FROM unnest($3::text[]) AS name ORDER BY name
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until,
        epoch = lease.epoch + (lease.holder <> excluded.holder)::int
    WHERE lease.holder = excluded.holder OR lease.lease_until <= {_NOW}
    RETURNING name, epoch
"""
_RELEASE = "UPDATE turnwire.lease SET lease_until = 0 WHERE name = ANY($1::text[]) AND holder = $2"
_CHECK = "SELECT 1 FROM turnwire.lease WHERE name = $1 AND epoch = $2 FOR SHARE"


class PostgresLeases:
    """The `NamedLeases` of this process."""

    def __init__(self, connections: ConnectionPool, seconds: float) -> None:
        self.seconds = seconds
        self.epochs: dict[str, int] = {}
        self._connections = connections
        # A person can see which process it is.
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"

    async def claim(self, names: Sequence[str]) -> set[str]:
        rows = await self._connections.fetch(_CLAIM, self._holder, int(self.seconds * 1000), sorted(names))
        self.epochs.update((name, epoch) for name, epoch in rows)
        return {name for name, _ in rows}

    async def release(self, names: Sequence[str]) -> None:
        await self._connections.execute(_RELEASE, list(names), self._holder)
        for name in names:
            self.epochs.pop(name, None)

    async def check(self, connection: SqlConnection, name: str, epoch: int) -> None:
        if await connection.fetchrow(_CHECK, name, epoch) is None:
            raise ShuttingDownError
