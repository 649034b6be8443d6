"""The shared parts of a store on PostgreSQL: calls over the pool, repeated after a lost connection."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.postgres.connections import Connections, DatabaseConnection
from turnwire.stores.postgres.notifications import CommitNotifier

T = TypeVar("T")


async def hold_lock(connection: DatabaseConnection, name: str) -> None:
    """Hold a lock, such as that of a principal's sessions and turns, until the transaction is over."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnwire ' || $1, 0))", name)


class PostgresDatabase:
    """The `Database` of many processes."""

    position_in = "strpos"

    def __init__(self, connections: Connections, notifier: CommitNotifier) -> None:
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
