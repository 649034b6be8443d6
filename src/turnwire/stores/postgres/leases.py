"""Named leases: at most one process holds a lease, until it releases the lease or does not renew it in time.

The clock is the database's. A process that takes a lease over raises its epoch, and a transaction that names an older
epoch is refused, so a process that was paused cannot write once another has taken its place.
"""

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence

from turnwire.core.errors import ShuttingDownError
from turnwire.core.ids import new_id
from turnwire.stores.postgres.shared_database import BlockingConnection, SharedDatabase

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CLAIM = f"""
    INSERT INTO extension_lease (name, holder, epoch, lease_until)
    SELECT name, ?, 1, {_NOW} + ? FROM unnest(?::text[]) AS name ORDER BY name
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, lease_until = excluded.lease_until,
        epoch = extension_lease.epoch + (extension_lease.holder <> excluded.holder)::int
    WHERE extension_lease.holder = excluded.holder OR extension_lease.lease_until <= {_NOW}
    RETURNING name, epoch
"""


class PostgresLeases:
    """The leases of this process, which must be claimed again before `seconds` have passed."""

    def __init__(self, database: SharedDatabase, seconds: float) -> None:
        self.seconds = seconds
        self.epochs: dict[str, int] = {}
        """The epoch of each lease that this process holds, as far as it knows."""
        self._database = database
        # A person can see which process it is.
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{new_id()}"

    async def claim(self, names: Iterable[str]) -> set[str]:
        """Claim or renew leases. Return those that this process has now. Raises StoreError."""
        values = (self._holder, int(self.seconds * 1000), sorted(names))
        rows = await asyncio.to_thread(
            self._database.transaction, lambda connection: connection.execute(_CLAIM, values).fetchall()
        )
        self.epochs.update(rows)
        return {name for name, _ in rows}

    async def release(self, names: Sequence[str]) -> None:
        """Give leases up, so that another process need not wait. Raises StoreError."""
        query = "UPDATE extension_lease SET lease_until = 0 WHERE name = ANY(?::text[]) AND holder = ?"
        values = (list(names), self._holder)
        await asyncio.to_thread(self._database.transaction, lambda connection: connection.execute(query, values))
        for name in names:
            self.epochs.pop(name, None)


def check_lease(connection: BlockingConnection, name: str, epoch: int) -> None:
    """Hold the lease until the transaction ends. Raises ShuttingDownError if another process has taken it over."""
    query = "SELECT 1 FROM extension_lease WHERE name = ? AND epoch = ? FOR SHARE"
    if connection.execute(query, (name, epoch)).fetchone() is None:
        raise ShuttingDownError
