"""The one thread that writes: it commits in groups, as large as they come, with no timer.

While one group is being committed the next one gathers on the event loop. Idle means no delay,
load means large groups. Nothing is told to anyone before its commit has returned.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Settle, Suspension
from turnwire.core.errors import StoreError, StoreFullError
from turnwire.core.turns import TurnState
from turnwire.stores.lines import to_lines
from turnwire.stores.sqlite.disk import Ballast
from turnwire.stores.sqlite.live_turn import LiveTurn

logger = logging.getLogger("turnwire.stores.sqlite")


class PendingAppend:
    """What one turn adds to the journal in one commit."""

    __slots__ = ("ending", "events", "parking", "release", "row", "settle", "turn")

    def __init__(self, turn: LiveTurn, settle: Settle) -> None:
        self.turn = turn
        self.settle = settle
        self.events: list[LoggedEvent] = []
        self.ending: TurnState | None = None
        self.parking: Suspension | None = None
        self.release = False
        self.row = 0


class Call:
    """Any other write; it fails alone, without taking the group with it."""

    __slots__ = ("error", "result", "run", "told")

    def __init__(self, run: Callable[[sqlite3.Connection], Any], told: asyncio.Future[Any]) -> None:
        self.run = run
        self.told = told
        self.result: Any = None
        self.error: BaseException | None = None


Work = PendingAppend | Call
Committed = Callable[[Sequence[Work], StoreError | None], None]


class SqliteWriter:
    def __init__(self, connection: sqlite3.Connection, ballast: Ballast, committed: Committed) -> None:
        self.is_full = False
        self.must_erase = False
        self.keeps_outbox = False
        self.commit_seconds = 0.0
        """How long the last one took."""
        self._connection = connection
        self._ballast = ballast
        self._committed = committed
        self._loop = asyncio.get_running_loop()
        self._groups: queue.SimpleQueue[Sequence[Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turnwire-writer", daemon=True)
        self._thread.start()

    def submit(self, group: Sequence[Work]) -> None:
        self._groups.put(group)

    async def close(self) -> None:
        self._groups.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            began = time.perf_counter()
            error = self._commit_or_make_room(group)
            self.commit_seconds = time.perf_counter() - began
            try:
                self._loop.call_soon_threadsafe(self._committed, group, error)
            except RuntimeError:
                return  # The loop is closed; what was committed is on disk.

    def _commit_or_make_room(self, group: Sequence[Work]) -> StoreError | None:
        try:
            try:
                self._commit(group)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                logger.error("the disk is full: running turns are ended, new ones refused, until there is room")
                self.is_full = True
                self._ballast.drop()
                self._commit(group)
            if self.must_erase:
                # What was deleted is still in the write-ahead log; this empties it, unless somebody is reading.
                self.must_erase = False
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            logger.exception("a commit failed")
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                return StoreFullError()
            return StoreError(f"the log could not be written: {error}")
        return None

    def _commit(self, group: Sequence[Work]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            rows: list[tuple[int, int, int, bytes]] = []
            for work in group:
                if isinstance(work, PendingAppend):
                    rows.append((work.row, work.turn.number, work.events[-1].position, to_lines(work.events)))
                    if work.ending is not None:
                        work.turn.write_ending(connection, work.events[-1], work.ending, keeps_outbox=self.keeps_outbox)
                    elif work.parking is not None:
                        work.turn.write_parking(connection, work.parking)
                    elif work.release:
                        work.turn.write_release(connection)
                else:
                    self._call(connection, work)
            if rows:
                connection.executemany("INSERT INTO journal (id, turn, last_position, body) VALUES (?, ?, ?, ?)", rows)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _call(self, connection: sqlite3.Connection, call: Call) -> None:
        connection.execute("SAVEPOINT call")
        try:
            call.result, call.error = call.run(connection), None
        except sqlite3.IntegrityError as error:
            connection.execute("ROLLBACK TO call")
            call.error = StoreError(f"this cannot be written: {error}")
        except sqlite3.Error:
            raise
        except Exception as error:
            connection.execute("ROLLBACK TO call")
            call.error = error
        connection.execute("RELEASE call")
