"""The tables, their version and migrations, and the connections to them."""

import re
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from turnwire.core.errors import StoreUnusableError
from turnwire.stores.schema import SHARED_TABLES

DATABASE_NAME = "turnwire.db"


def in_sqlite(query: str) -> str:
    """Return a statement in SQLite's form, which has no schemas and marks values with `?`."""
    for name, own in (("turnwire.", ""), ("bigserial", "INTEGER"), ("bytea", "BLOB"), (' COLLATE "C"', "")):
        query = query.replace(name, own)
    return re.sub(r"\$(\d)", r"?\1", query)


# The tables of version 1. Each migration leads from version n to n + 1. What is released is never changed.
TABLES = f"""
    {in_sqlite(SHARED_TABLES)}
    CREATE TABLE turn (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        session_id TEXT NOT NULL,
        principal TEXT NOT NULL,
        agent TEXT NOT NULL,
        message TEXT NOT NULL,
        folded_message TEXT NOT NULL,
        channel TEXT NOT NULL,
        external_id TEXT,
        parent_turn_id TEXT,
        idempotency_key TEXT,
        fingerprint TEXT NOT NULL,
        options TEXT NOT NULL,
        attachments TEXT,                -- until the turn has ended
        disconnect_grace REAL,
        phase TEXT NOT NULL,
        outcome TEXT,
        worker TEXT,
        epoch INTEGER NOT NULL,
        last_position INTEGER NOT NULL,  -- of an ended turn; for the others, the newest row of `event` has it
        first_kept INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        started_at INTEGER,
        waiting_until INTEGER,
        ended_at INTEGER,
        first_row INTEGER NOT NULL,      -- its first row in `event`
        sealed INTEGER NOT NULL DEFAULT 0,
        folded_answer TEXT,
        state BLOB,
        UNIQUE (principal, external_id),
        UNIQUE (principal, idempotency_key)
    );
    CREATE INDEX turn_by_session ON turn (session_id, number);
    CREATE INDEX turn_unfinished ON turn (principal) WHERE phase <> 'ended';
    CREATE INDEX turn_by_end ON turn (ended_at) WHERE first_kept = 1;

    -- The turns that have not ended.
    CREATE VIEW head AS
    SELECT id, number, session_id, principal, phase, worker, epoch, last_position, started_at, waiting_until
    FROM turn WHERE phase <> 'ended';

    -- A row has the events of one turn in one commit. Rows are only added at the end, so that a commit of many turns
    -- changes few pages. The writer keeps the rows of live turns in memory; others are found by a scan.
    CREATE TABLE event (
        id INTEGER PRIMARY KEY,
        turn INTEGER NOT NULL,
        last_position INTEGER NOT NULL,
        body BLOB NOT NULL
    );

    -- The journal entries of a turn, until it is sealed. A row has the entries of one commit.
    CREATE TABLE call (
        id INTEGER PRIMARY KEY,
        turn INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE INDEX call_by_turn ON call (turn);

    -- The events and calls of an ended turn, compressed, and the evidence against tampering.
    CREATE TABLE sealed_log (
        turn INTEGER PRIMARY KEY,
        body BLOB NOT NULL,
        calls BLOB,
        seal BLOB NOT NULL
    );

    -- Commands to turns that have not ended.
    CREATE TABLE command (
        turn_id TEXT PRIMARY KEY REFERENCES turn (id) ON DELETE CASCADE,
        kind TEXT NOT NULL,
        reason TEXT NOT NULL
    );
"""
MIGRATIONS: tuple[str, ...] = ()


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the one connection that writes and checkpoints, and migrate. Raises StoreUnusableError."""
    with _explained(path):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with _explained(path, connection):
        version = _check_version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        # Overwrite what is deleted, trimmed or replaced, so that erased text is not left in the file.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, version)
    return connection


def open_memory() -> sqlite3.Connection:
    """Open an empty database in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    _migrate(connection, 0)
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, not even a checkpoint. Raises StoreUnusableError."""
    if not path.exists():
        raise StoreUnusableError(str(path), "there is no such file; start `turnwire serve` with the same --data first")
    with _explained(path):
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    with _explained(path, connection):
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        _check_version(connection, path)
    return connection


@contextmanager
def _explained(path: Path, connection: sqlite3.Connection | None = None) -> Generator[None]:
    """Turn an SQLite error into StoreUnusableError, and close the connection after any error."""
    try:
        yield
    except (sqlite3.Error, StoreUnusableError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreUnusableError(str(path), explain(error)) from error
        raise


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for number, script in enumerate((TABLES, *MIGRATIONS)[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT")


def newest_version() -> int:
    """Return the version of the schema that this code reads and writes."""
    return 1 + len(MIGRATIONS)


def _check_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the file, 0 if it has no tables. Raises StoreUnusableError for a newer one."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > newest_version():
        raise StoreUnusableError(
            str(path),
            f"it was written by a newer Turnwire (schema {version}, this one knows {newest_version()}); "
            "upgrade turnwire, or give another --data folder",
        )
    return version


def explain(error: sqlite3.Error) -> str:
    """Say what is wrong with the file, and what to do."""
    match error.sqlite_errorname if hasattr(error, "sqlite_errorname") else "":
        case "SQLITE_READONLY" | "SQLITE_READONLY_DIRECTORY" | "SQLITE_READONLY_DBMOVED":
            return "the disk or the file is read-only; make it writable, or give another --data folder"
        case "SQLITE_CANTOPEN":
            return "it cannot be opened or created there; check that the folder exists and may be written to"
        case "SQLITE_NOTADB":
            return "the file is not a SQLite database; move it away, or give another --data folder"
        case "SQLITE_FULL":
            return "the disk is full; make room and start again"
        case _:
            return f"{error}; `turnwire doctor` may tell more"
