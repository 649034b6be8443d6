"""The SQLite store: one process, one folder, one database file."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from turnwire.core.errors import StoreUnusableError
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.rules import Leases
from turnwire.stores.sqlite.admission import SqliteAdmission
from turnwire.stores.sqlite.blobs import SqliteBlobs
from turnwire.stores.sqlite.claims import SqliteClaims
from turnwire.stores.sqlite.disk import Ballast, FolderLock
from turnwire.stores.sqlite.live_turn import LiveTurns
from turnwire.stores.sqlite.maintenance import SqliteMaintenance
from turnwire.stores.sqlite.queries import SqliteQueries
from turnwire.stores.sqlite.registry import SqliteAnnotations, SqliteRegistry
from turnwire.stores.sqlite.schema import DATABASE_NAME, explain, open_reader, open_writer
from turnwire.stores.sqlite.tables import SqliteTables
from turnwire.stores.sqlite.writer import SqliteWriter

_READERS = 2
_COMMIT_INTERVAL = 0.005


class SqliteStore:
    """A `Store` of one process, made of the parts of this package."""

    is_shared = False

    def __init__(
        self,
        folder: Path,
        *,
        lease: float = 10,
        clock: Callable[[], float] = time.monotonic,
        keeps_outbox: bool = False,
        notes_waits: bool = False,
        seal_key: bytes | None = None,
        commit_interval: float = _COMMIT_INTERVAL,
    ) -> None:
        self._folder = folder
        self._path = path = folder / DATABASE_NAME
        self._lock = FolderLock(folder)
        self._threads = SqliteThreads(lambda: open_writer(path), name="turnwire-writer")
        self.readers = SqliteThreads(lambda: open_reader(path), name="turnwire-reader", threads=_READERS)
        # A search reads every message of a principal; the quick reads of the others do not wait behind it.
        self._searchers = SqliteThreads(lambda: open_reader(path), name="turnwire-search")
        self._turns = turns = LiveTurns(Leases(lease, clock))
        self._writer = writer = SqliteWriter(
            self._threads,
            turns,
            Ballast(folder),
            keeps_outbox=keeps_outbox,
            notes_waits=notes_waits,
            interval=commit_interval,
        )
        queries = SqliteQueries(self.readers, self._searchers, turns)
        claims = SqliteClaims(self.readers, writer, turns)
        registry = SqliteRegistry(self.readers, self._searchers, writer, turns)
        annotations = SqliteAnnotations(self.readers, writer)
        blobs = SqliteBlobs(self.readers, writer)
        maintenance = SqliteMaintenance(writer, turns, seal_key)
        writer.on_room = maintenance.complete_states

        self.read = queries.read
        self.watch = queries.watch
        self.append = writer.append
        self.journal = queries.journal
        self.seal = queries.seal
        self.ended_turns = queries.ended_turns
        self.maintain = maintenance.maintain

        self.create_turn = SqliteAdmission(writer, turns).create_turn
        self.find_turn = queries.find_turn
        self.list_turns = queries.list_turns
        self.next_turn = queries.next_turn
        self.unfinished = queries.unfinished
        self.under_way = queries.under_way
        self.delete_turn = maintenance.delete_turn
        self.history = queries.history
        self.turn_state = queries.turn_state
        self.tokens_used = queries.tokens_used

        self.claim = claims.claim
        self.claim_next = claims.claim_next
        self.take_over = claims.take_over
        self.claimed = claims.claimed
        self.hold = claims.hold
        self.waiting = claims.waiting
        self.checkpoint = claims.checkpoint
        self.renew = claims.renew
        self.retire = claims.retire
        self.workers = claims.workers
        self.command = claims.command
        self.commands = claims.commands
        self.attend = claims.attend

        self.ensure_session = registry.ensure_session
        self.find_session = registry.find_session
        self.list_sessions = registry.list_sessions
        self.rename_session = registry.rename_session
        self.delete_session = registry.delete_session
        self.put_blob = blobs.put_blob
        self.read_blob = blobs.read_blob
        self.list_blobs = blobs.list_blobs
        self.list_keys = registry.list_keys
        self.add_key = registry.add_key
        self.revoke_key = registry.revoke_key
        self.annotate = annotations.annotate
        self.find_annotation = annotations.find_annotation
        self.list_annotations = annotations.list_annotations
        self.remove_annotations = annotations.remove_annotations
        self.take_due = registry.take_due
        self.put_off = registry.put_off
        self.dismiss = registry.dismiss
        tables = SqliteTables(writer)
        self.create_tables = tables.create_tables
        self.transaction = tables.transaction
        self.leases = tables.leases

    def may_be_watched_elsewhere(self, turn_id: str) -> bool:
        return False

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
