"""Access to a data folder from outside its server: reading along, copying, and moving to another store."""

import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Self, Unpack

from msgspec.structs import replace

from turnwire.core.contracts.stores import StoreOptions
from turnwire.core.errors import StoreUnusableError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.turns import TurnRecord
from turnwire.settings import Settings
from turnwire.sqlite_threads import InlineSqlite
from turnwire.stores.archive import Archive
from turnwire.stores.blobs import StoredBlobs
from turnwire.stores.database import Row
from turnwire.stores.lines import unseal
from turnwire.stores.rows import RECORD, TURN, record_from
from turnwire.stores.sqlite.database import SqliteConnection, run_now
from turnwire.stores.sqlite.disk import BALLAST_NAME
from turnwire.stores.sqlite.queries import SqliteQueries
from turnwire.stores.sqlite.schema import DATABASE_NAME, MIGRATIONS, TABLES, explain, open_reader
from turnwire.stores.sqlite.store import SqliteStore
from turnwire.stores.transfer import TURN_ROW, MovingTable, MovingTurn

# Reading along

# The last position of an unfinished turn, which only `event` has.
_NEWEST = "(SELECT max(e.last_position) FROM event e WHERE e.id >= t.first_row AND e.turn = t.number)"


class SqliteArchive(Archive, SqliteQueries, StoredBlobs):
    """The `Archive` of a folder that another process writes to, with all that a store can read."""

    poll_seconds = 0.05

    def __init__(self, folder: Path) -> None:
        self._connection: sqlite3.Connection = open_reader(folder / DATABASE_NAME)
        self._version: object = None
        inline = InlineSqlite(self._connection)
        SqliteQueries.__init__(self, inline, inline, inline, interval=0)
        Archive.__init__(self)

    def close(self) -> None:
        super().close()
        self._connection.close()

    def has_keys(self) -> bool:
        return self._fetch("SELECT EXISTS (SELECT 1 FROM api_key)")[0][0] == 1

    def check(self) -> str | None:
        """Return what SQLite finds wrong with the file, or None."""
        result = self._fetch("PRAGMA quick_check(1)")[0][0]
        return None if result == "ok" else result

    def _may_have_changed(self) -> bool:
        previous = self._version
        try:
            self._version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            self._version = error  # The watchers read, and report it if it lasts.
        return self._version != previous

    def _records(self, rest: str, *values: object) -> list[TurnRecord]:
        query = f"SELECT {RECORD}, CASE WHEN h.id IS NOT NULL THEN {_NEWEST} END AS newest FROM {TURN} {rest}"
        rows = self._fetch(query, *values)
        return [
            record_from(row) if row["newest"] is None else replace(record_from(row), last_position=row["newest"])
            for row in rows
        ]

    def _fetch(self, query: str, *values: object) -> list[Row]:
        return run_now(SqliteConnection(self._connection).fetch(query, *values))


# Copying

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the pages copied so far, and the number of all pages."""

_PAGES = 2_000
_MAGIC = b"SQLite format 3\x00"
# Files that belong to a running server or to an open database.
_EXCLUDED_SUFFIXES = (".lock", "-wal", "-shm", "-journal")
_EXCLUDED_NAMES = (BALLAST_NAME, "server.json", "login_secret")


def copy_folder(folder: Path, target: Path, progress: Progress) -> tuple[int, int, int]:
    """Copy a data folder as it is at one moment, while a server may write to it. Return bytes, files and turns.

    Raises StoreUnusableError, OSError.
    """
    open_reader(folder / DATABASE_NAME).close()  # Raises if there is nothing that this version can read.
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_excluded(path)]
    paths.sort(key=lambda path: path == folder / DATABASE_NAME)
    size = turns = 0
    for path in paths:
        name = path.relative_to(folder)
        copy = target / name
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_database(path):
            turns = _copy_database(path, copy, str(name), progress)  # The store's own database comes last.
        else:
            shutil.copy2(path, copy)
        copy.chmod(0o600)
        size += copy.stat().st_size
    _sync(target)
    return size, len(paths), turns


def _is_excluded(path: Path) -> bool:
    return path.name in _EXCLUDED_NAMES or path.name.endswith(_EXCLUDED_SUFFIXES)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _copy_database(path: Path, copy: Path, name: str, progress: Progress) -> int:
    """Copy one database, and return the number of turns in it."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as target,
        ):
            source.execute("PRAGMA wal_autocheckpoint = 0")
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # This fixes the snapshot.
            source.backup(target, pages=_PAGES, progress=lambda _, left, whole: progress(name, whole - left, whole))
            source.execute("COMMIT")
            check = target.execute("PRAGMA quick_check(1)").fetchone()[0]
            has_turns = target.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'turn')").fetchone()[0]
            turns = target.execute("SELECT count(*) FROM turn").fetchone()[0] if has_turns else 0
    except sqlite3.Error as error:
        raise StoreUnusableError(str(path), explain(error)) from error
    if check != "ok":
        raise StoreUnusableError(str(path), f"the copy is not sound: {check}")
    return turns


def _sync(target: Path) -> None:
    """Flush the copy to the disk, so that it survives a power failure."""
    for path in [target, *target.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Moving

_TURNS = f"""
    SELECT t.number, t.phase, t.first_row, s.body, s.calls, s.seal, c.kind, c.reason, t.{", t.".join(TURN_ROW)}
    FROM turn t LEFT JOIN sealed_log s ON s.turn = t.number LEFT JOIN command c ON c.turn_id = t.id
    WHERE t.number > $1 ORDER BY t.number LIMIT $2
"""


class SqliteExport(SqliteStore):
    """The `TransferSource` of a folder. Opening it makes sure that no server uses the folder."""

    @classmethod
    def build(cls, settings: Settings, **options: Unpack[StoreOptions]) -> Self:
        """Return the export of the data folder. Raises StoreUnusableError."""
        if not (settings.data / DATABASE_NAME).exists():
            raise StoreUnusableError(
                str(settings.data), "there are no logs in it; name the folder of the server with --data"
            )
        return super().build(settings, **options)

    async def count_turns(self) -> int:
        return (await self._fetch("SELECT count(*) FROM turn"))[0][0]

    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        return [(row["number"], await self._moving(row)) for row in await self._fetch(_TURNS, number, limit)]

    async def table(self, name: str) -> MovingTable:
        # The target has its own numbers.
        return MovingTable(name=name, columns=[name for name in await self._columns(name) if name != "number"])

    async def plugin_tables(self) -> list[MovingTable]:
        """Return the tables that are neither the store's nor SQLite's own."""
        own = re.findall(r"CREATE TABLE (\w+)", " ".join((TABLES, *MIGRATIONS)))
        query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        tables = [(name, sql) for name, sql in await self._fetch(query) if name not in own]
        return [MovingTable(name=name, columns=await self._columns(name), statement=sql) for name, sql in tables]

    async def _columns(self, table: str) -> list[str]:
        return [row[0] for row in await self._fetch("SELECT name FROM pragma_table_info($1)", table)]

    async def pages(self, table: MovingTable) -> AsyncIterator[list[Row]]:
        # A file that is new in the target has just been used there.
        columns = ", ".join(str(now_ms()) if name == "used_at" else name for name in table.columns)
        query = f"SELECT {columns}, rowid FROM {table.name} WHERE rowid > $1 ORDER BY rowid LIMIT $2"
        # A file may be large.
        last, limit = -1, 1 if table.name == "blob" else 100
        while page := await self._fetch(query, last, limit):
            last = page[-1][-1]
            yield [row[:-1] for row in page]

    async def _moving(self, row: Row) -> MovingTurn:
        if row["body"] is not None:
            lines = b"\n".join(unseal(row["body"]))
            calls = b"\n".join(unseal(row["calls"])) if row["calls"] else b""
        else:
            query = "SELECT body FROM event WHERE id >= $1 AND turn = $2 ORDER BY id"
            lines = b"\n".join(event[0] for event in await self._fetch(query, row["first_row"], row["number"]))
            query = "SELECT body FROM call WHERE turn = $1 ORDER BY id"
            calls = b"\n".join(call[0] for call in await self._fetch(query, row["number"]))
        values = {name: row[name] for name in TURN_ROW}
        values["last_position"] = row["first_kept"] + lines.count(b"\n")
        return MovingTurn(
            row=values,
            phase=row["phase"],
            lines=lines,
            calls=calls,
            seal=row["seal"],
            command=(row["kind"], row["reason"]) if row["kind"] else None,
            digests=[use[0] for use in await self._fetch("SELECT digest FROM blob_use WHERE turn_id = $1", row["id"])],
        )

    async def _fetch(self, query: str, *values: object) -> list[Row]:
        return await self._database.read(lambda connection: connection.fetch(query, *values))
