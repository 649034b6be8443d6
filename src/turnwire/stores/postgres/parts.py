"""The objects that the parts of the PostgreSQL store share."""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from turnwire.stores.database import StorePart
from turnwire.stores.lines import SealedLogs
from turnwire.stores.postgres.connections import PLANNED_ONCE, Connections
from turnwire.stores.postgres.database import PostgresDatabase
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.writer import PostgresWriter

# Between two commits of a busy store, so that a group has the events of many turns. 0 costs half as much CPU again.
_COMMIT_INTERVAL = 0.005
# For everything but writing and following, whose cost does not grow with the turns. Twenty connections of a process in
# all leave room for several processes below the 100 that PostgreSQL allows by default.
_CONNECTIONS = 8


class PostgresParts(StorePart):
    """The base of the parts: connections, the writer, and the watchers of this process.

    `hints` is False behind a pooler that gives every transaction another connection: then commits of other processes
    are found by polling, a little later. `clock` is for tests; leases use the server's own.
    """

    def __init__(
        self,
        url: str,
        *,
        lease: float = 10,
        connections: int = _CONNECTIONS,
        hints: bool = True,
        keeps_outbox: bool = False,
        notes_waits: bool = False,
        seal_key: bytes | None = None,
        clock: Callable[[], float] | None = None,
        commit_interval: float = _COMMIT_INTERVAL,
    ) -> None:
        self.connections = Connections(url, connections, behind_pooler=not hints)
        self._following = Connections(url, 1, behind_pooler=not hints, settings=PLANNED_ONCE)
        # A pool of its own, so that other calls do not delay renewals of leases.
        self._leasing = Connections(url, 1, behind_pooler=not hints)
        self._lease_ms = int(lease * 1000)
        self._clock = clock
        self._seal_key = seal_key
        self._sealed_logs = SealedLogs()
        self._attend_locks = WeakValueDictionary[str, asyncio.Lock]()
        self._notifier = CommitNotifier(self._following, with_hints=hints)
        self._writer = PostgresWriter(
            self.connections,
            self._notifier,
            keeps_outbox=keeps_outbox,
            notes_waits=notes_waits,
            interval=commit_interval,
        )
        self._database = PostgresDatabase(self.connections, self._notifier)

    def _now(self) -> int | None:
        """Return the time of a test's clock, or None for the server's."""
        return None if self._clock is None else int(self._clock() * 1000)
