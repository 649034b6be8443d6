"""The kernel's journal: accepted messages, deliveries and published events, in one SQLite file of the data folder."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from turnwire.core.errors import ShuttingDownError, StoreError, StoreUnusableError
from turnwire.sqlite_threads import SqliteThreads

T = TypeVar("T")

FILE_NAME = "extensions.db"
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS told (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, topic TEXT, payload TEXT) STRICT;
CREATE TABLE IF NOT EXISTS listener (name TEXT PRIMARY KEY, topic TEXT, told INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS conversation (
    channel_id TEXT, user_id TEXT, number INTEGER, last_at INTEGER, PRIMARY KEY (channel_id, user_id)
) STRICT;
CREATE TABLE IF NOT EXISTS delivery (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    channel_id TEXT,
    user_id TEXT,
    principal TEXT,
    agent_id TEXT,
    session TEXT,
    text TEXT,
    at INTEGER,
    turn_id TEXT,
    answer TEXT,
    delivered_at INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS undelivered ON delivery (number) WHERE delivered_at IS NULL;
"""


class Journal:
    """The database that the event bus and the delivery queue share, so that one transaction can cover both."""

    def __init__(self, folder: Path | None) -> None:
        """Keep the journal in `folder`, or in memory if there is none."""
        self._folder = folder
        self._threads = SqliteThreads(self._connect, name="turnwire-extensions")

    async def open(self) -> None:
        """Raises StoreUnusableError if the file cannot be used."""
        await self._threads.open()

    async def close(self) -> None:
        """Finish the transactions that were queued before, then close the file."""
        await self._threads.close()

    def run(self, call: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue `call(connection)` as one transaction, behind those queued before, even if the caller is cancelled.

        Raises StoreError, and ShuttingDownError after `close`.
        """
        if self._threads.is_closed:
            raise ShuttingDownError
        return asyncio.ensure_future(_with_store_errors(self._threads.transaction(call)))

    def _connect(self) -> sqlite3.Connection:
        path = ":memory:" if self._folder is None else self._folder / FILE_NAME
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if connection.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
                connection.close()
                raise StoreUnusableError(str(path), "a newer Turnwire has written it; use that one")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise StoreUnusableError(str(path), f"{error}; move the file away to start with a new one") from error
        return connection


async def _with_store_errors(transaction: asyncio.Future[T]) -> T:
    try:
        return await transaction
    except sqlite3.Error as error:
        raise StoreError(f"the extensions' journal cannot be used: {error}") from error
