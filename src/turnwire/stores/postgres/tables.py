"""The tables of plugins in the database."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from turnwire.core.contracts.stores import SqlConnection
from turnwire.stores.postgres.connections import Connections, DatabaseConnection
from turnwire.stores.postgres.schema import MIGRATION_LOCK

T = TypeVar("T")


class PostgresTables:
    """The `TableStore` of the database."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def create_tables(self, statements: Sequence[str]) -> None:
        async def create(connection: SqlConnection) -> None:
            # Two processes that create the same table at once would both fail.
            await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            for statement in statements:
                await connection.execute(statement)

        await self.transaction(create)

    async def transaction(self, work: Callable[[SqlConnection], Awaitable[T]]) -> T:
        async def call(connection: DatabaseConnection, is_retry: bool) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self._connections.run(call)
