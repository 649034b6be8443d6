"""The tables of plugins in the database file, or in memory."""

import re
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import StoreError
from turnwire.stores.sqlite.writer import SqliteWriter

T = TypeVar("T")


class SqliteTables:
    """The `TableStore` of one process."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer

    async def create_tables(self, statements: Sequence[str]) -> None:
        async def create(connection: SqlConnection) -> None:
            for statement in statements:
                await connection.execute(statement)

        await self.transaction(create)

    async def transaction(self, work: Callable[[SqlConnection], Awaitable[T]]) -> T:
        await self._writer.refuse_if_full()
        return await self._writer.write(lambda connection: run_at_once(work, connection))

    def leases(self, seconds: float) -> None:
        return None


def run_at_once(work: Callable[[SqlConnection], Awaitable[T]], connection: sqlite3.Connection) -> T:
    """Run `work`, which awaits nothing but the connection, to its end. A statement that is wrong fails it alone."""
    steps = work(TableConnection(connection)).__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
            raise StoreError(f"the database refused: {error}") from error
        raise
    raise RuntimeError("the work of a transaction must await its connection alone")


class TableConnection:
    """An SQLite connection as a `SqlConnection`. Nothing here waits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def fetch(self, query: str, *values: object) -> list[Any]:
        return self._connection.execute(_translated(query), values).fetchall()

    async def fetchrow(self, query: str, *values: object) -> Any:
        return next(iter(await self.fetch(query, *values)), None)

    async def fetchval(self, query: str, *values: object) -> Any:
        row = await self.fetchrow(query, *values)
        return None if row is None else row[0]

    async def execute(self, query: str, *values: object) -> None:
        await self.fetch(query, *values)


@lru_cache(maxsize=512)
def _translated(query: str) -> str:
    """Return the query in SQLite's dialect: it has no schema, and other placeholders."""
    return re.sub(r"\$(\d+)", r"?\1", query.replace("turnwire.", ""))
