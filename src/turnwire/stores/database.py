"""The interface to a database for the parts of a store that are written once, for SQLite and for PostgreSQL.

Statements are written for PostgreSQL: `$1` stands for a value, and tables are in the schema `turnwire`. SQLite's
connection translates both. A row is a tuple and a mapping.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.log.turns import TurnRecord

T = TypeVar("T")
Row = Any


class Database(Protocol):
    """A pool of connections, and what differs between the databases."""

    @property
    def position_in(self) -> str:
        """The SQL function that returns the position of a text in a longer one, or 0."""
        ...

    def row_lock(self, clause: str) -> str:
        """Return the clause of a query that locks rows, or nothing if the database has one writer at a time."""
        ...

    async def read(self, work: Callable[[SqlConnection], Coroutine[Any, Any, T]], *, searches: bool = False) -> T:
        """Return the result of `work(connection)`, which changes nothing.

        Work that `searches` reads many rows; others do not wait for it.
        """
        ...

    async def write(
        self,
        work: Callable[[SqlConnection, bool], Coroutine[Any, Any, T]],
        *,
        lock: str | None = None,
        adds: bool = False,
        erases: bool = False,
    ) -> T:
        """Return the result of `work(connection, is_retry)`: all that it writes is committed, or nothing if it raises.

        Work with the same `lock` runs one at a time; the lock of a principal's turns is its name. Work that
        `adds` is refused on a full disk with StoreFullError; after work that `erases`, no copy is left in the store's
        own files. `is_retry` is True if an earlier attempt may have been committed.
        """
        ...

    async def erase_turns(self, connection: SqlConnection, column: str, value: str) -> None:
        """Delete the turns with this value in a column, and all that belongs to them."""
        ...

    def current(self, record: TurnRecord) -> TurnRecord:
        """Return the newest version of a record that was read from the database."""
        ...

    def changed(self, key: str) -> None:
        """Wake those who watch a key."""
        ...


class StorePart:
    """The base of the parts that a store inherits from."""

    _database: Database
