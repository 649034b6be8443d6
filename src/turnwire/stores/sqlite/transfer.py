"""Access to a data folder from outside its server: reading along, copying, and moving to another store."""

import asyncio
import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from turnwire.core.contracts.stores import Annotation, ApiKey, Command, JournalEntry, Seal, Wake
from turnwire.core.errors import StoreUnusableError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.files import Blob
from turnwire.core.log.turns import Session, TurnRecord, TurnState
from turnwire.stores.lines import SealedLogs, state_from, unseal
from turnwire.stores.rules import Watchers, read_with_epoch
from turnwire.stores.sqlite.blobs import list_blobs, read_blob
from turnwire.stores.sqlite.disk import BALLAST_NAME
from turnwire.stores.sqlite.queries import HISTORY, NEXT
from turnwire.stores.sqlite.registry import ANNOTATION_COLUMNS, annotation_from
from turnwire.stores.sqlite.rows import (
    SESSION_COLUMNS,
    TURN_COLUMNS,
    find_turn,
    read_calls,
    read_ended,
    read_journal,
    read_seal,
    read_turn,
    session_from,
    turn_from,
    with_position,
)
from turnwire.stores.sqlite.schema import DATABASE_NAME, MIGRATIONS, TABLES, explain, open_reader
from turnwire.stores.sqlite.store import SqliteStore
from turnwire.stores.transfer import MovingTurn, PluginTable, TokensSpent

# Reading along

_POLL_SECONDS = 0.05


class SqliteArchive:
    """A `LogReader` over a file that another process writes; it polls for changes."""

    def __init__(self, folder: Path) -> None:
        self._connection: sqlite3.Connection = open_reader(folder / DATABASE_NAME)
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
        query = f"SELECT {TURN_COLUMNS}, first_row, number FROM turn ORDER BY number DESC LIMIT ?"
        rows = self._connection.execute(query, (limit,)).fetchall()
        return [
            record if record.phase == "ended" else with_position(self._connection, record, row[-2], row[-1])
            for row in rows
            for record in (turn_from(row[:-2]),)
        ]

    def list_unfinished(self, limit: int) -> list[TurnRecord]:
        """Return the unfinished turns of all principals, oldest first."""
        query = f"SELECT {TURN_COLUMNS}, first_row, number FROM turn WHERE phase <> 'ended' ORDER BY number LIMIT ?"
        rows = self._connection.execute(query, (limit,)).fetchall()
        return [with_position(self._connection, turn_from(row[:-2]), row[-2], row[-1]) for row in rows]

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
        return read_journal(self._connection, turn_id)

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        return read_blob(self._connection, session_id, digest)

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        rows = self._connection.execute(HISTORY, (turn_id, limit)).fetchall()
        return [state for row in rows if (state := state_from(row[0]))]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        values = (session_id, after_turn_id, session_id, after_turn_id)
        row = self._connection.execute(NEXT, values).fetchone()
        return turn_from(row) if row else None

    async def seal(self, turn_id: str) -> Seal | None:
        return read_seal(self._connection, turn_id)

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        return read_ended(self._connection, after_turn_id, limit)

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

_TURNS = (
    f"SELECT {TURN_COLUMNS}, number, sealed, first_row, idempotency_key, fingerprint, state"
    " FROM turn WHERE number > ? ORDER BY number LIMIT ?"
)


class SqliteExport:
    """The `TransferSource` of a folder. Opening it makes sure that no server uses the folder."""

    def __init__(self, folder: Path) -> None:
        self._store = SqliteStore(folder)
        self._readers = self._store.readers

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def count_turns(self) -> int:
        query = "SELECT count(*) FROM turn"
        return await self._readers.run(lambda connection: connection.execute(query).fetchone()[0])

    async def sessions_after(self, session_id: str, limit: int) -> list[Session]:
        query = f"SELECT {SESSION_COLUMNS} FROM session WHERE id > ? ORDER BY id LIMIT ?"
        rows = await self._readers.run(lambda connection: connection.execute(query, (session_id, limit)).fetchall())
        return [session_from(row) for row in rows]

    async def blobs_of(self, session_id: str) -> AsyncIterator[Blob]:
        for file in await self._readers.run(lambda connection: list_blobs(connection, session_id)):
            if (blob := await self._store.read_blob(session_id, file.digest or "")) is not None:
                yield blob

    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        return await self._readers.run(
            lambda connection: [
                (row[-6], _moving(connection, row)) for row in connection.execute(_TURNS, (number, limit)).fetchall()
            ]
        )

    async def plugin_tables(self) -> list[PluginTable]:
        return await self._readers.run(_plugin_tables)

    async def annotations(self) -> list[Annotation]:
        query = f"SELECT {ANNOTATION_COLUMNS} FROM annotation"
        rows = await self._readers.run(lambda connection: connection.execute(query).fetchall())
        return [annotation_from(row) for row in rows]

    async def spent(self) -> list[TokensSpent]:
        query = "SELECT principal, day, tokens FROM spending"
        rows = await self._readers.run(lambda connection: connection.execute(query).fetchall())
        return [TokensSpent(*row) for row in rows]

    async def list_keys(self) -> list[ApiKey]:
        return await self._store.list_keys()


def _plugin_tables(connection: sqlite3.Connection) -> list[PluginTable]:
    """Return the tables that are neither the store's nor SQLite's own."""
    own = re.findall(r"CREATE TABLE (\w+)", " ".join((TABLES, *MIGRATIONS)))
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    tables: list[PluginTable] = []
    for name, statement in connection.execute(query).fetchall():
        if name not in own:
            rows = connection.execute(f"SELECT * FROM {name}")
            columns = [column[0] for column in rows.description]
            tables.append(PluginTable(name=name, statement=statement, columns=columns, rows=rows.fetchall()))
    return tables


def _moving(connection: sqlite3.Connection, row: Any) -> MovingTurn:
    number, sealed, first_row, key, fingerprint, state = row[-6:]
    record = turn_from(row[:-6])
    if record.phase != "ended":
        record = with_position(connection, record, first_row, number)
    if sealed:
        query = "SELECT body, calls, seal FROM sealed_log WHERE turn = ?"
        body, sealed_calls, evidence = connection.execute(query, (number,)).fetchone()
        lines = b"\n".join(unseal(body))
        calls = b"\n".join(unseal(sealed_calls)) if sealed_calls else b""
    else:
        evidence = None
        query = "SELECT body FROM event WHERE id >= ? AND turn = ? ORDER BY id"
        lines = b"\n".join(row[0] for row in connection.execute(query, (first_row, number)))
        calls = read_calls(connection, number)
    checkpoint = connection.execute("SELECT body FROM checkpoint WHERE turn = ?", (number,)).fetchone()
    command = connection.execute("SELECT reason, kind FROM command WHERE turn = ?", (number,)).fetchone()
    return MovingTurn(
        record=record,
        idempotency_key=key,
        fingerprint=fingerprint,
        lines=lines,
        calls=calls,
        seal=evidence,
        state=state,
        checkpoint=checkpoint[0] if checkpoint else None,
        command=Command(record.id, *command) if command and record.phase != "ended" else None,
        digests=[row[0] for row in connection.execute("SELECT digest FROM blob_use WHERE turn = ?", (number,))],
    )
