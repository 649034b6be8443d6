"""The shared parts of a store on SQLite: statements in SQLite's form, reads and writes on the right connection."""

import sqlite3
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, TypeVar, Unpack

from turnwire.core.contracts.stores import SqlConnection, StoreOptions
from turnwire.core.errors import StoreError
from turnwire.core.log.turns import TurnRecord
from turnwire.sqlite_threads import SqliteRunner
from turnwire.stores.database import Row, StorePart
from turnwire.stores.lines import SealedLogs
from turnwire.stores.rules import Leases
from turnwire.stores.sqlite.disk import Ballast
from turnwire.stores.sqlite.live_turn import LiveTurns
from turnwire.stores.sqlite.schema import in_sqlite
from turnwire.stores.sqlite.writer import SqliteWriter

T = TypeVar("T")


_translated = lru_cache(maxsize=512)(in_sqlite)


class SqliteRow(tuple[Any, ...]):
    """A row: a tuple, and a mapping by the names of its columns."""

    _columns: dict[str, int]

    @classmethod
    def of(cls, cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> "SqliteRow":
        row = cls(values)
        row._columns = {description[0]: number for number, description in enumerate(cursor.description)}
        return row

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._columns[key] if isinstance(key, str) else key)


class SqliteConnection:
    """A `SqlConnection` that answers at once, for use with `run_now`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def fetch(self, query: str, *values: object) -> list[Row]:
        return self._execute(query, values).fetchall()

    async def fetchrow(self, query: str, *values: object) -> Row | None:
        return self._execute(query, values).fetchone()

    async def fetchval(self, query: str, *values: object) -> Any:
        row = self._execute(query, values).fetchone()
        return row[0] if row else None

    async def execute(self, query: str, *values: object) -> object:
        return self._execute(query, values)

    def _execute(self, query: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = SqliteRow.of
        try:
            return cursor.execute(_translated(query), values)  # type: ignore[arg-type]
        except sqlite3.OperationalError as error:
            # A statement that is wrong fails its own call alone.
            if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
                raise StoreError(f"the database refused: {error}") from error
            raise


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as returned:
        return returned.value
    raise RuntimeError("the work of a transaction must await its connection alone")


class SqliteDatabase:
    """The `Database` of one process."""

    position_in = "instr"

    def __init__(self, readers: SqliteRunner, searchers: SqliteRunner, writer: SqliteWriter, turns: LiveTurns) -> None:
        self._readers = readers
        self._searchers = searchers
        self._writer = writer
        self._turns = turns

    def row_lock(self, clause: str) -> str:
        return ""

    async def read(self, work: Callable[[SqlConnection], Coroutine[Any, Any, T]], *, searches: bool = False) -> T:
        connections = self._searchers if searches else self._readers
        return await connections.run(lambda connection: run_now(work(SqliteConnection(connection))))

    async def write(
        self,
        work: Callable[[SqlConnection, bool], Coroutine[Any, Any, T]],
        *,
        lock: str | None = None,
        adds: bool = False,
        erases: bool = False,
    ) -> T:
        if adds:
            await self._writer.refuse_if_full()
        return await self._writer.write(
            lambda connection: run_now(work(SqliteConnection(connection), False)), erases=erases
        )

    async def erase_turns(self, connection: SqlConnection, column: str, value: str) -> None:
        for table in ("sealed_log", "event", "call"):
            query = f"DELETE FROM {table} WHERE turn IN (SELECT number FROM turn WHERE {column} = $1)"
            await connection.execute(query, value)
        await connection.execute(f"DELETE FROM turn WHERE {column} = $1", value)

    def current(self, record: TurnRecord) -> TurnRecord:
        return self._turns.current(record)

    def changed(self, key: str) -> None:
        self._turns.watchers.notify(key, ())


class SqliteParts(StorePart):
    """The base of the parts of the store: connections, the writer, and the live turns of this process.

    `interval` is that between two commits, unless the options say another. Without a `ballast`, no disk gets full.
    """

    def __init__(
        self,
        writing: SqliteRunner,
        reading: SqliteRunner,
        searching: SqliteRunner,
        ballast: Ballast | None = None,
        *,
        interval: float,
        keeps_logs: bool = False,
        **options: Unpack[StoreOptions],
    ) -> None:
        self._threads = writing
        self.readers = reading
        self._searchers = searching
        leases = Leases(options.get("lease", 10), options.get("clock", time.monotonic))
        self._turns = LiveTurns(leases, keeps_logs=keeps_logs)
        self._sealed_logs = SealedLogs()
        self._writer = SqliteWriter(
            writing,
            self._turns,
            ballast,
            keeps_outbox=options.get("keeps_outbox", False),
            notes_waits=options.get("notes_waits", False),
            interval=options.get("commit_interval", interval),
        )
        self._database = SqliteDatabase(reading, searching, self._writer, self._turns)
        self.seal_key = options.get("seal_key")
