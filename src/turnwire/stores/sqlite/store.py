"""The SQLite store: one process, one folder, one database file."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Self, Unpack

from turnwire.core.contracts.stores import Accepted, Admission, NewTurn, StoreOptions
from turnwire.core.errors import StoreUnusableError
from turnwire.settings import Settings
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.blobs import StoredBlobs
from turnwire.stores.plugin_tables import PluginTables
from turnwire.stores.registry import StoredAnnotations, StoredKeys, StoredNotices
from turnwire.stores.sessions import StoredSessions
from turnwire.stores.sqlite.admission import SqliteAdmission
from turnwire.stores.sqlite.claims import SqliteClaims
from turnwire.stores.sqlite.disk import Ballast, FolderLock
from turnwire.stores.sqlite.maintenance import SqliteMaintenance
from turnwire.stores.sqlite.queries import SqliteQueries
from turnwire.stores.sqlite.schema import DATABASE_NAME, explain, open_reader, open_writer

_READERS = 2
# Between two commits of a busy store, so that a group has the events of many turns: each costs a write to the disk.
_COMMIT_INTERVAL = 0.005


class SqliteEngine(
    SqliteAdmission,
    SqliteClaims,
    SqliteMaintenance,
    SqliteQueries,
    StoredSessions,
    StoredBlobs,
    StoredKeys,
    StoredAnnotations,
    StoredNotices,
    PluginTables,
):
    """All parts of a `Store` of one process, on a database in a file or in memory."""

    is_shared = False

    def leases(self, seconds: float) -> None:
        return None

    def _forget_session(self, session_id: str) -> None:
        self._turns.forget_session(session_id)


class SqliteStore(SqliteEngine):
    """The `Store` of one folder."""

    def __init__(self, folder: Path, **options: Unpack[StoreOptions]) -> None:
        self._folder = folder
        self._path = path = folder / DATABASE_NAME
        self._lock = FolderLock(folder)
        super().__init__(
            SqliteThreads(lambda: open_writer(path), name="turnwire-writer"),
            SqliteThreads(lambda: open_reader(path), name="turnwire-reader", threads=_READERS),
            # A search reads every message of a principal; the quick reads of the others do not wait behind it.
            SqliteThreads(lambda: open_reader(path), name="turnwire-search"),
            Ballast(folder),
            interval=_COMMIT_INTERVAL,
            **options,
        )
        self._writer.on_room = self.complete_states

    @classmethod
    def build(cls, settings: Settings, **options: Unpack[StoreOptions]) -> Self:
        return cls(settings.data, **options)

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        # A turn that is committed must become live even if the caller is cancelled.
        return await asyncio.shield(super().create_turn(new, admission))

    async def open(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise StoreUnusableError(str(self._folder), f"{error.strerror}; give another --data folder") from error
        try:
            await self._threads.run(self._turns.load)
            await self._writer.start()
        except BaseException as error:
            await self._threads.close()
            self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise StoreUnusableError(str(self._path), explain(error)) from error
            raise

    async def close(self) -> None:
        """Commit what was appended before, and close. Raises StoreError if that fails; the store closes anyway."""
        try:
            await self._writer.flush()
        finally:
            # The writer's connection closes last: only it may empty the write-ahead log.
            await self.readers.close()
            await self._searchers.close()
            await self._threads.close()
            self._lock.release()
