"""Reading a data folder from another process, while its server runs or when it does not."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Command, Wake
from turnwire.core.errors import StoreUnusableError
from turnwire.core.turns import Session, TurnRecord, TurnState
from turnwire.stores.lines import unseal
from turnwire.stores.rules import Watchers, read_known
from turnwire.stores.sqlite import queries
from turnwire.stores.sqlite.disk import BALLAST_NAME
from turnwire.stores.sqlite.queries import TURN_COLUMNS, find_turn, read_turn, state_from, turn_from, with_position
from turnwire.stores.sqlite.schema import DATABASE_NAME, explain, open_reader
from turnwire.stores.sqlite.store import SqliteStore
from turnwire.stores.transfer import MovingTurn, TokensSpent

_POLL_SECONDS = 0.05


class SqliteArchive:
    """A `LogReader` over a file that somebody else writes. It asks SQLite now and then whether anything changed."""

    def __init__(self, folder: Path) -> None:
        self._connection: sqlite3.Connection = open_reader(folder / DATABASE_NAME)
        self._watchers = Watchers()
        self._poll: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        self._connection.close()

    def find_turn(self, turn_id: str) -> TurnRecord:
        return find_turn(self._connection, turn_id)

    def list_turns(self, limit: int) -> list[TurnRecord]:
        """The newest turns of everybody, newest first: whoever can read the file can read them all."""
        query = f"SELECT {TURN_COLUMNS}, first_row, number FROM turn ORDER BY number DESC LIMIT ?"
        rows = self._connection.execute(query, (limit,)).fetchall()
        return [
            record if record.phase == "ended" else with_position(self._connection, record, row[-2], row[-1])
            for row in rows
            for record in (turn_from(row[:-2]),)
        ]

    def list_unfinished(self, limit: int) -> list[TurnRecord]:
        """The turns that run, wait or are queued, of everybody, oldest first."""
        query = f"SELECT {TURN_COLUMNS}, first_row, number FROM turn WHERE phase <> 'ended' ORDER BY number LIMIT ?"
        rows = self._connection.execute(query, (limit,)).fetchall()
        return [with_position(self._connection, turn_from(row[:-2]), row[-2], row[-1]) for row in rows]

    def has_keys(self) -> bool:
        return self._connection.execute("SELECT EXISTS (SELECT 1 FROM api_key)").fetchone()[0] == 1

    def check(self) -> str | None:
        """What SQLite finds wrong with the file."""
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return None if found == "ok" else found

    def turn_state(self, turn_id: str) -> TurnState | None:
        row = self._connection.execute("SELECT state FROM turn WHERE id = ?", (turn_id,)).fetchone()
        return state_from(row[0]) if row else None

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_known(self, turn_id, after, limit, epoch)
        return read_turn(self._connection, turn_id, after, limit)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        if self._poll is None:
            self._poll = asyncio.create_task(self._poll_changes())
        return self._watchers.add(key, wake)

    async def _poll_changes(self) -> None:
        seen = None
        while True:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                self._watchers.notify_all()
            await asyncio.sleep(_POLL_SECONDS)


# A copy of a data folder, as it was at one moment, while somebody else writes to it.


Progress = Callable[[str, int, int], None]
"""Is told the name of a file, the pages that are copied, and how many there are."""

_PAGES = 2_000
_MAGIC = b"SQLite format 3\x00"
# Files that belong to a running server, or come with a database.
_LEFT_OUT = (".lock", "-wal", "-shm", "-journal")
_LEFT_OUT_NAMES = (BALLAST_NAME, "server.json")


def copy_folder(folder: Path, target: Path, progress: Progress) -> tuple[int, int, int]:
    """Copies everything but what belongs to a running server. Returns bytes, files and turns.

    Raises StoreUnusableError, OSError.
    """
    open_reader(folder / DATABASE_NAME).close()  # There is something to copy, and this version can read it.
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_left_out(path)]
    found.sort(key=lambda path: path == folder / DATABASE_NAME)
    size = files = turns = 0
    for path in found:
        name = path.relative_to(folder)
        copy = target / name
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_database(path):
            turns = _copy_database(path, copy, str(name), progress)  # That of the last one, which has them.
        else:
            shutil.copy2(path, copy)
        copy.chmod(0o600)
        size, files = size + copy.stat().st_size, files + 1
    _make_lasting(target)
    return size, files, turns


def _is_left_out(path: Path) -> bool:
    return path.name in _LEFT_OUT_NAMES or path.name.endswith(_LEFT_OUT)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _copy_database(path: Path, copy: Path, name: str, progress: Progress) -> int:
    """Returns how many turns are in it."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as made,
        ):
            source.execute("PRAGMA wal_autocheckpoint = 0")
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # From here on it sees one moment.
            source.backup(made, pages=_PAGES, progress=lambda _, left, whole: progress(name, whole - left, whole))
            source.execute("COMMIT")
            wrong = made.execute("PRAGMA quick_check(1)").fetchone()[0]
            has_turns = made.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'turn')").fetchone()[0]
            turns = made.execute("SELECT count(*) FROM turn").fetchone()[0] if has_turns else 0
    except sqlite3.Error as error:
        raise StoreUnusableError(str(path), explain(error)) from error
    if wrong != "ok":
        raise StoreUnusableError(str(path), f"the copy is not sound: {wrong}")
    return turns


def _make_lasting(target: Path) -> None:
    """Has the disk keep it, also if the power goes now."""
    for path in [target, *target.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Everything that is in the file, for whoever moves it elsewhere.


_TURNS = (
    f"SELECT {queries.TURN_COLUMNS}, number, sealed, first_row, idempotency_key, fingerprint, state"
    " FROM turn WHERE number > ? ORDER BY number LIMIT ?"
)


class SqliteExport(SqliteStore):
    """The store of a folder that no server uses; opening it sees to that."""

    async def count_turns(self) -> int:
        return await self._read(lambda connection: connection.execute("SELECT count(*) FROM turn").fetchone()[0])

    async def sessions_after(self, session_id: str, limit: int) -> list[Session]:
        query = f"SELECT {queries.SESSION_COLUMNS} FROM session WHERE id > ? ORDER BY id LIMIT ?"
        rows = await self._read(lambda connection: connection.execute(query, (session_id, limit)).fetchall())
        return [queries.session_from(row) for row in rows]

    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        return await self._read(
            lambda connection: [
                (row[-6], _moving(connection, row)) for row in connection.execute(_TURNS, (number, limit)).fetchall()
            ]
        )

    async def spent(self) -> list[TokensSpent]:
        query = "SELECT principal, day, tokens FROM spending"
        return [TokensSpent(*row) for row in await self._read(lambda connection: connection.execute(query).fetchall())]


def _moving(connection: sqlite3.Connection, row: Any) -> MovingTurn:
    number, sealed, first_row, key, fingerprint, state = row[-6:]
    record = queries.turn_from(row[:-6])
    if record.phase != "ended":
        record = queries.with_position(connection, record, first_row, number)
    if sealed:
        body = connection.execute("SELECT body FROM sealed_log WHERE turn = ?", (number,)).fetchone()[0]
        lines = b"\n".join(unseal(body))
    else:
        query = "SELECT body FROM journal WHERE id >= ? AND turn = ? ORDER BY id"
        lines = b"\n".join(found[0] for found in connection.execute(query, (first_row, number)))
    checkpoint = connection.execute("SELECT body FROM checkpoint WHERE turn = ?", (number,)).fetchone()
    command = connection.execute("SELECT reason, kind FROM command WHERE turn = ?", (number,)).fetchone()
    return MovingTurn(
        record=record,
        idempotency_key=key,
        fingerprint=fingerprint,
        lines=lines,
        state=state,
        checkpoint=checkpoint[0] if checkpoint else None,
        command=Command(record.id, *command) if command and record.phase != "ended" else None,
    )
