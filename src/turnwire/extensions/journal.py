"""What the kernel must not forget: which messages it has taken, which answers it has brought, what it has told whom.

A small SQLite file in the data folder, used by one thread. What is written in one `run` is there as a whole or not
at all, also after the process was killed.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from turnwire.core.errors import ShuttingDownError, StoreError, StoreUnusableError

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
    def __init__(self, folder: Path | None) -> None:
        """With no folder it is kept in memory, and forgotten."""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "turnwire-extensions")
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False

    async def open(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def close(self) -> None:
        """What was begun is finished first."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._is_closed = True
        self._thread.shutdown(wait=False)

    def run(self, act: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Does something in one transaction, after all that was asked for before, also if nobody waits for it.

        Raises StoreError, and ShuttingDownError when it is closed.
        """
        if self._is_closed:
            raise ShuttingDownError
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, act)

    def _open(self) -> None:
        place = ":memory:" if self._folder is None else self._folder / FILE_NAME
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if connection.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
                connection.close()
                raise StoreUnusableError(str(place), "a newer Turnwire has written it; use that one")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise StoreUnusableError(str(place), f"{error}; move the file away to begin anew") from error
        self._connection = connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        if connection is None:
            raise ShuttingDownError
        try:
            # Commits what was done, or takes it back.
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return act(connection)
        except sqlite3.Error as error:
            raise StoreError(f"the extensions' journal cannot be used: {error}") from error
