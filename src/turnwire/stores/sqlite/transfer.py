"""Access to a data folder from outside its server: reading along, copying, and moving to another store."""

import asyncio
import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

from turnwire.core.contracts.stores import Annotation, ApiKey, Command, JournalEntry, Seal, Wake
from turnwire.core.errors import StoreUnusableError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.files import Blob
from turnwire.core.log.turns import Session, TurnRecord, TurnState
from turnwire.stores.blobs import find_blob
from turnwire.stores.database import Row
from turnwire.stores.lines import SealedLogs, state_from, unseal
from turnwire.stores.rows import RECORD, SESSION, TURN, annotation_from, record_from, session_from
from turnwire.stores.rules import Watchers, read_with_epoch
from turnwire.stores.sqlite.database import SqliteConnection
from turnwire.stores.sqlite.disk import BALLAST_NAME
from turnwire.stores.sqlite.rows import find_turn, read_records, read_turn
from turnwire.stores.sqlite.schema import DATABASE_NAME, MIGRATIONS, TABLES, explain, open_reader
from turnwire.stores.sqlite.store import SqliteStore
from turnwire.stores.transfer import MovingTurn, PluginTable, TokensSpent
from turnwire.stores.turns import find_next_turn, read_ended, read_history, read_journal, read_seal

# Reading along

_POLL_SECONDS = 0.05


class SqliteArchive:
    """A `LogReader` over a file that another process writes; it polls for changes."""

    def __init__(self, folder: Path) -> None:
        self._connection: sqlite3.Connection = open_reader(folder / DATABASE_NAME)
        self._own = SqliteConnection(self._connection)
        self._sealed_logs = SealedLogs()
        self._watchers = Watchers()
        self._poll: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        self._connection.close()

    def find_turn(self, turn_id: str) -> TurnRecord:
        return find_turn(self._connection, turn_id)

    def match_ids(self, part: str) -> list[str]:
        """Return the ids of the turns that begin or end with `part`, newest first."""
        is_part = "substr(id, 1, length(?1)) = ?1 OR substr(id, -length(?1)) = ?1"
        query = f"SELECT id FROM turn WHERE {is_part} ORDER BY number DESC"
        return [row[0] for row in self._connection.execute(query, (part,))]

    def list_turns(self, limit: int) -> list[TurnRecord]:
        """Return the newest turns of all principals, newest first: read access to the file is access to all of them."""
        return read_records(self._connection, "ORDER BY t.number DESC LIMIT ?", limit)

    def list_unfinished(self, limit: int) -> list[TurnRecord]:
        """Return the unfinished turns of all principals, oldest first."""
        return read_records(self._connection, "WHERE h.id IS NOT NULL ORDER BY t.number LIMIT ?", limit)

    def has_keys(self) -> bool:
        return self._connection.execute("SELECT EXISTS (SELECT 1 FROM api_key)").fetchone()[0] == 1

    def check(self) -> str | None:
        """Return what SQLite finds wrong with the file, or None."""
        result = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return None if result == "ok" else result

    def turn_state(self, turn_id: str) -> TurnState | None:
        row = self._connection.execute("SELECT state FROM turn WHERE id = ?", (turn_id,)).fetchone()
        return state_from(row[0]) if row else None

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_with_epoch(self.read, turn_id, after, limit, epoch)
        return read_turn(self._connection, self._sealed_logs, turn_id, after, limit)

    async def journal(self, turn_id: str) -> list[JournalEntry]:
        return await read_journal(self._own, turn_id)

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        return await find_blob(self._own, session_id, digest)

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        return await read_history(self._own, turn_id, limit)

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        return await find_next_turn(self._own, session_id, after_turn_id)

    async def seal(self, turn_id: str) -> Seal | None:
        return await read_seal(self._own, turn_id)

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        """Return ended turns of all principals, by ascending ids."""
        return await read_ended(self._own, after_turn_id, limit)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        if self._poll is None:
            self._poll = asyncio.create_task(self._poll_changes())
        return self._watchers.add(key, wake)

    async def _poll_changes(self) -> None:
        last_version = None
        while True:
            try:
                version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                version = error  # The watchers read, and report it if it lasts.
            if version != last_version:
                last_version = version
                self._watchers.notify_all()
            await asyncio.sleep(_POLL_SECONDS)


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

_TURNS = f"SELECT {RECORD}, t.number, t.sealed, t.first_row, t.idempotency_key, t.fingerprint, t.state FROM {TURN}"


class SqliteExport:
    """The `TransferSource` of a folder. Opening it makes sure that no server uses the folder."""

    def __init__(self, folder: Path) -> None:
        self._store = SqliteStore(folder)

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def count_turns(self) -> int:
        return (await self._fetch("SELECT count(*) FROM turn"))[0][0]

    async def sessions_after(self, session_id: str, limit: int) -> list[Session]:
        query = f"SELECT {SESSION} FROM session s WHERE s.id > $1 ORDER BY s.id LIMIT $2"
        return [session_from(row) for row in await self._fetch(query, session_id, limit)]

    async def blobs_of(self, session_id: str) -> AsyncIterator[Blob]:
        for file in await self._store.list_blobs(session_id):
            if (blob := await self._store.read_blob(session_id, file.digest or "")) is not None:
                yield blob

    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        rows = await self._fetch(f"{_TURNS} WHERE t.number > $1 ORDER BY t.number LIMIT $2", number, limit)
        return [(row["number"], await self._moving(row)) for row in rows]

    async def plugin_tables(self) -> list[PluginTable]:
        """Return the tables that are neither the store's nor SQLite's own."""
        own = re.findall(r"CREATE TABLE (\w+)", " ".join((TABLES, *MIGRATIONS)))
        query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        tables: list[PluginTable] = []
        for name, statement in await self._fetch(query):
            if name not in own:
                columns = [row[0] for row in await self._fetch("SELECT name FROM pragma_table_info($1)", name)]
                rows = [tuple(row) for row in await self._fetch(f"SELECT * FROM {name}")]
                tables.append(PluginTable(name=name, statement=statement, columns=columns, rows=rows))
        return tables

    async def annotations(self) -> list[Annotation]:
        return [annotation_from(row) for row in await self._fetch("SELECT * FROM annotation")]

    async def spent(self) -> list[TokensSpent]:
        return [TokensSpent(*row) for row in await self._fetch("SELECT principal, day, tokens FROM spending")]

    async def list_keys(self) -> list[ApiKey]:
        return await self._store.list_keys()

    async def _fetch(self, query: str, *values: object) -> list[Row]:
        return await self._store.fetch(query, *values)

    async def _moving(self, row: Row) -> MovingTurn:
        number, record = row["number"], record_from(row)
        if record.phase != "ended":
            record = await self._store.find_turn(record.principal, record.id)
        evidence = None
        if row["sealed"]:
            ((body, sealed_calls, evidence),) = await self._fetch(
                "SELECT body, calls, seal FROM sealed_log WHERE turn = $1", number
            )
            lines = b"\n".join(unseal(body))
            calls = b"\n".join(unseal(sealed_calls)) if sealed_calls else b""
        else:
            query = "SELECT body FROM event WHERE id >= $1 AND turn = $2 ORDER BY id"
            lines = b"\n".join(row[0] for row in await self._fetch(query, row["first_row"], number))
            calls = b"\n".join(
                row[0] for row in await self._fetch("SELECT body FROM call WHERE turn = $1 ORDER BY id", number)
            )
        commands = await self._fetch("SELECT reason, kind FROM command WHERE turn_id = $1", record.id)
        return MovingTurn(
            record=record,
            idempotency_key=row["idempotency_key"],
            fingerprint=row["fingerprint"],
            lines=lines,
            calls=calls,
            seal=evidence,
            state=row["state"],
            command=Command(record.id, *commands[0]) if commands and record.phase != "ended" else None,
            digests=[row[0] for row in await self._fetch("SELECT digest FROM blob_use WHERE turn_id = $1", record.id)],
        )
