"""The tables of plugins, in both databases."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from turnwire.core.contracts.stores import SqlConnection
from turnwire.stores.database import StorePart

T = TypeVar("T")


class PluginTables(StorePart):
    """The `TableStore` of both databases, without its leases."""

    async def create_tables(self, statements: Sequence[str]) -> None:
        async def create(connection: SqlConnection, is_retry: bool) -> None:
            for statement in statements:
                await connection.execute(statement)

        # Two processes that create the same table at once would both fail.
        await self._database.write(create, lock="the tables of plugins", adds=True)

    async def transaction(self, work: Callable[[SqlConnection], Awaitable[T]]) -> T:
        async def run(connection: SqlConnection, is_retry: bool) -> T:
            return await work(connection)

        return await self._database.write(run, adds=True)
