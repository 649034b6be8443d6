"""The shared parts of a store on PostgreSQL: calls over the pool, repeated after a lost connection."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, Unpack
from weakref import WeakValueDictionary

from turnwire.core.contracts.stores import SqlConnection, StoreOptions
from turnwire.core.errors import StoreUnusableError
from turnwire.core.log.turns import TurnRecord
from turnwire.settings import Settings
from turnwire.stores.database import StorePart
from turnwire.stores.lines import SealedLogs
from turnwire.stores.postgres.connections import PLANNED_ONCE, ConnectionPool, DatabaseConnection
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.writer import PostgresWriter

T = TypeVar("T")
# Between two commits of a busy store, so that a group has the events of many turns. 0 costs half as much CPU again.
_COMMIT_INTERVAL = 0.005
# For everything but writing and following, whose cost does not grow with the turns. Twenty connections of a process in
# all leave room for several processes below the 100 that PostgreSQL allows by default.
_CONNECTIONS = 8


def database_url(settings: Settings) -> str:
    """Return the URL of the settings. Raises StoreUnusableError."""
    if settings.database_url is None:
        raise StoreUnusableError("PostgreSQL", "no database is configured; set `database_url`")
    return settings.database_url.get_secret_value()


async def hold_lock(connection: DatabaseConnection, name: str) -> None:
    """Hold a lock, such as that of a principal's sessions and turns, until the transaction is over."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnwire ' || $1, 0))", name)


class PostgresDatabase:
    """The `Database` of many processes."""

    position_in = "strpos"

    def __init__(self, connections: ConnectionPool, notifier: CommitNotifier) -> None:
        self._connections = connections
        self._notifier = notifier

    def row_lock(self, clause: str) -> str:
        return clause

    async def read(self, work: Callable[[SqlConnection], Coroutine[Any, Any, T]], *, searches: bool = False) -> T:
        return await self._connections.run(lambda connection, _: work(connection))

    async def write(
        self,
        work: Callable[[SqlConnection, bool], Coroutine[Any, Any, T]],
        *,
        lock: str | None = None,
        adds: bool = False,
        erases: bool = False,
    ) -> T:
        async def call(connection: DatabaseConnection, is_retry: bool) -> T:
            async with connection.transaction():
                if lock is not None:
                    await hold_lock(connection, lock)
                return await work(connection, is_retry)

        return await self._connections.run(call)

    async def erase_turns(self, connection: SqlConnection, column: str, value: str) -> None:
        query = f"DELETE FROM turnwire.turn WHERE {column} = $1 RETURNING number, day"
        rows = await connection.fetch(query, value)
        numbers, days = [row[0] for row in rows], {row[1] for row in rows}
        await connection.execute("DELETE FROM turnwire.sealed_log WHERE turn = ANY($1)", numbers)
        await connection.execute("DELETE FROM turnwire.call WHERE turn = ANY($1)", numbers)
        # The days are few, and limit the search to their partitions.
        await connection.execute("DELETE FROM turnwire.event WHERE day = ANY($1) AND turn = ANY($2)", [*days], numbers)

    def current(self, record: TurnRecord) -> TurnRecord:
        return record

    def changed(self, key: str) -> None:
        self._notifier.changed(key)


class PostgresParts(StorePart):
    """The base of the parts of the store: connections, the writer, and the watchers of this process.

    `hints` is False behind a pooler that gives every transaction another connection: then commits of other processes
    are found by polling, a little later. Leases use the server's clock, unless a test passes another.
    """

    def __init__(
        self, url: str, *, connections: int = _CONNECTIONS, hints: bool = True, **options: Unpack[StoreOptions]
    ) -> None:
        self.connections = ConnectionPool(url, connections, behind_pooler=not hints)
        self._following = ConnectionPool(url, 1, behind_pooler=not hints, settings=PLANNED_ONCE)
        # A pool of its own, so that other calls do not delay renewals of leases.
        self._leasing = ConnectionPool(url, 1, behind_pooler=not hints)
        self._lease_ms = int(options.get("lease", 10) * 1000)
        self._clock = options.get("clock")
        self._seal_key = options.get("seal_key")
        self._sealed_logs = SealedLogs()
        self._attend_locks = WeakValueDictionary[str, asyncio.Lock]()
        self._notifier = CommitNotifier(self._following, with_hints=hints)
        self._writer = PostgresWriter(
            self.connections,
            self._notifier,
            keeps_outbox=options.get("keeps_outbox", False),
            notes_waits=options.get("notes_waits", False),
            interval=options.get("commit_interval", _COMMIT_INTERVAL),
        )
        self._database = PostgresDatabase(self.connections, self._notifier)

    def _now(self) -> int | None:
        """Return the time of a test's clock, or None for the server's."""
        return None if self._clock is None else int(self._clock() * 1000)
