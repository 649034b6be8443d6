"""Group commit: appends and other writes of all turns, committed together by one thread.

While one group is being committed, the next one gathers on the event loop: an idle store commits at once, a busy one
commits large groups, each at least the commit interval after the one before. Nothing is published before its commit has
returned.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core import metrics
from turnwire.core.contracts.stores import AppendRequest
from turnwire.core.errors import StoreError, StoreFullError, TurnEndedError
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.core.people.budget import day_of, tokens_in
from turnwire.sqlite_threads import InlineSqlite, SqliteRunner
from turnwire.stores.lines import to_entry_lines, to_lines
from turnwire.stores.rows import folded
from turnwire.stores.rules import CommitSchedule, without_attachments
from turnwire.stores.sqlite.disk import Ballast
from turnwire.stores.sqlite.live_turn import LiveTurn, LiveTurns

T = TypeVar("T")
WRITE_CLAIM = "UPDATE turn SET phase = 'running', worker = ?, epoch = ?, started_at = ? WHERE number = ?"
_ERASE_SECONDS = 1.0
_MAX_ROWS = 64
"""The most rows of one statement; the connection keeps as many statements prepared."""
logger = logging.getLogger("turnwire.stores.sqlite")


class SqliteAppend(Struct, eq=False):
    """A request of one turn in a commit. `row` is its row in `event`, or 0 if it has no events.

    `claim` is the turn's claim, if that is not written yet. A `brief` ending leaves the folded state for later: on a
    full disk there is room for the end of every turn, but not for a copy of every answer.
    """

    request: AppendRequest
    turn: LiveTurn
    row: int
    brief: bool
    claim: TurnRecord | None

    @property
    def writes_only_events(self) -> bool:
        request = self.request
        return not (self.claim or request.entries or request.new_phase)


class SqliteCall:
    """Any other write; it fails alone, without taking the group with it.

    After the commit of a call that `erases`, the write-ahead log, which still has what was deleted, is emptied.
    """

    __slots__ = ("erases", "error", "future", "result", "run")

    def __init__(
        self, run: Callable[[sqlite3.Connection], Any], future: asyncio.Future[Any], *, erases: bool = False
    ) -> None:
        self.run = run
        self.future = future
        self.erases = erases
        self.result: Any = None
        self.error: BaseException | None = None


Work = SqliteAppend | SqliteCall


class SqliteWriter:
    def __init__(
        self,
        threads: SqliteRunner,
        turns: LiveTurns,
        ballast: Ballast | None,
        *,
        keeps_outbox: bool,
        notes_waits: bool,
        interval: float,
    ) -> None:
        self.is_full = False
        self.on_room: Callable[[], Awaitable[None]] | None = None
        """Called when a full disk has room again, before anything new is accepted."""
        self._must_erase = False
        self._erase_after = 0.0
        self._threads = threads
        self._turns = turns
        self._ballast = ballast
        self._keeps_outbox = keeps_outbox
        self._notes_waits = notes_waits
        self._schedule = CommitSchedule(self._commit_next, interval)
        self._waiting: list[AppendRequest | SqliteCall] = []
        self._is_committing = False
        self._commit_seconds = 0.0

    async def start(self) -> None:
        if self._ballast is not None:
            self.is_full = not await asyncio.to_thread(self._ballast.restore)

    async def flush(self) -> None:
        """Return when everything that was appended before is committed."""
        await self.write(lambda connection: None)

    # Gathering a group, on the event loop

    def append(self, work: "AppendRequest | SqliteCall") -> None:
        """Queue work for the next commit."""
        if not self._is_committing:
            self._schedule.request()
        self._waiting.append(work)

    def write(self, run: Callable[[sqlite3.Connection], T], *, erases: bool = False) -> asyncio.Future[T]:
        """Queue `run(connection)` in its order among the appends, and return the future of its result.

        The future is done after the commit. In memory the call is committed at once, before the appends that wait.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = SqliteCall(run, future, erases=erases)
        if isinstance(self._threads, InlineSqlite):
            self._submit([call])
        else:
            self.append(call)
        return future

    async def refuse_if_full(self) -> None:
        """Raise StoreFullError if the disk is full and still has no room.

        The ballast grows with the number of turns that it may have to end.
        """
        turns = self._turns.queue.session_count
        if self._ballast is None or (not self.is_full and self._ballast.covers(turns)):
            return
        if not await asyncio.to_thread(self._ballast.restore, turns):
            self.is_full = True
            raise StoreFullError
        was_full, self.is_full = self.is_full, False
        if was_full and self.on_room is not None:
            await self.on_room()

    def _commit_next(self) -> None:
        if self._is_committing:
            return  # One group at a time: if it fails, nothing after it may be written.
        waiting, self._waiting = self._waiting, []
        group = [work for queued in waiting if (work := self._take(queued)) is not None]
        if group:
            self._submit(group)

    def _take(self, work: AppendRequest | SqliteCall) -> Work | None:
        """Return the work for a commit, or None if it is refused."""
        if isinstance(work, SqliteCall):
            return work
        work.is_taken = True
        live = self._turns.by_id.get(work.turn_id)
        if live is None:
            work.settle(len(work.events), TurnEndedError(work.turn_id))
            return None
        refusal = live.head.refusal(work)
        if refusal is None and self.is_full and work.ending is None:
            refusal = StoreFullError()  # The room that the ballast has left is for endings.
        if refusal is not None:
            work.settle(len(work.events), refusal)
            return None
        live.head.position = work.last_position
        live.head.ended = work.ending is not None
        row = self._turns.take_row() if work.events else 0
        return SqliteAppend(work, live, row, self.is_full, live.record if live.has_unwritten_claim else None)

    def _submit(self, group: Sequence[Work]) -> None:
        self._is_committing = True
        self._threads.submit(partial(self._commit_group, group), lambda error: self._committed(group, error))

    # Committing a group, on the writer's thread

    def _commit_group(self, group: Sequence[Work], connection: sqlite3.Connection) -> StoreError | None:
        began = time.perf_counter()
        error = self._commit_or_make_room(group, connection, began)
        self._commit_seconds = time.perf_counter() - began
        return error

    def _commit_or_make_room(
        self, group: Sequence[Work], connection: sqlite3.Connection, began: float
    ) -> StoreError | None:
        try:
            try:
                self._commit(group, connection)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                    raise
                logger.error("the disk is full: running turns are ended, new ones refused, until there is room")
                self.is_full = True
                if self._ballast is not None:
                    self._ballast.drop()
                # The room of the ballast is for the ends of turns, not for what was being written.
                return StoreFullError()
        except Exception as error:
            logger.exception("a commit failed")
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                return StoreFullError()
            return StoreError(f"the log could not be written: {error}")
        self._must_erase = self._must_erase or any(isinstance(work, SqliteCall) and work.erases for work in group)
        if self._must_erase and began >= self._erase_after:
            try:
                self._empty_write_ahead_log(connection)
            except Exception as error:
                # What was to be committed is committed; this comes after a later commit.
                logger.warning("the write-ahead log could not be emptied; this is tried again: %s", error)
                self._must_erase = True
        return None

    def _empty_write_ahead_log(self, connection: sqlite3.Connection) -> None:
        """Truncate the write-ahead log, if no connection reads it now: every turn waits for this thread."""
        timeout = connection.execute("PRAGMA busy_timeout").fetchone()[0]
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._must_erase = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] != 0
            self._erase_after = time.perf_counter() + _ERASE_SECONDS
        finally:
            connection.execute(f"PRAGMA busy_timeout = {timeout}")

    def _commit(self, group: Sequence[Work], connection: sqlite3.Connection) -> None:
        rows = [] if self._turns.keeps_logs else _rows_of(group)
        rest = [work for work in group if not (isinstance(work, SqliteAppend) and work.writes_only_events)]
        if not rest and len(rows) <= _MAX_ROWS:
            if rows:
                _insert_rows(connection, rows)  # One statement is a transaction of its own.
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            calls: list[tuple[int, bytes]] = []
            for work in rest:
                if isinstance(work, SqliteAppend):
                    request = work.request
                    if work.claim is not None:
                        connection.execute(WRITE_CLAIM, claim_values(work.claim, work.turn.number))
                    if request.entries:
                        calls.append((work.turn.number, to_entry_lines(request.entries)))
                    if request.ending is not None:
                        _write_ending(connection, work, request.ending, self._keeps_outbox)
                    elif request.waiting_until is not None:
                        _write_wait(connection, work.turn, request.waiting_until)
                        if self._notes_waits:
                            _write_notice(connection, work.turn.record.id)
                    elif request.release:
                        _write_release(connection, work.turn)
                else:
                    _run_call(connection, work)
            for start in range(0, len(rows), _MAX_ROWS):
                _insert_rows(connection, rows[start : start + _MAX_ROWS])
            if calls:
                connection.executemany("INSERT INTO call (turn, body) VALUES (?, ?)", calls)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    # Publishing a group, on the event loop

    def _committed(self, group: Sequence[Work], error: StoreError | None) -> None:
        self._is_committing = False
        events = sum([len(work.request.events) for work in group if isinstance(work, SqliteAppend)])
        metrics.note_commit(events, self._commit_seconds)
        if error is not None:
            self._take_back(group, error)
            return
        if self._waiting:
            self._schedule.request()
        for work in group:
            if isinstance(work, SqliteAppend):
                self._publish(work)
            elif work.future.cancelled():
                pass
            elif work.error is not None:
                work.future.set_exception(work.error)
            else:
                work.future.set_result(work.result)

    def _publish(self, append: SqliteAppend) -> None:
        live, request = append.turn, append.request
        events, phase = request.events, request.new_phase
        if append.claim is not None and append.claim.epoch == live.record.epoch:
            live.has_unwritten_claim = False
        if events:
            live.add_committed(append.row, events)
        if request.ending is not None:
            live.record = replace(
                live.record,
                phase=phase,
                outcome=request.ending.outcome,
                ended_at=events[-1].at,
                options=without_attachments(live.record.options),
            )
            self._turns.leases.forget_readers(live.record.id)
        elif request.waiting_until is not None:
            live.record = replace(live.record, phase=phase, worker=None, waiting_until=request.waiting_until)
        elif phase is not None:
            live.record = replace(live.record, phase=phase, worker=None)
        if events:
            self._turns.watchers.notify(live.record.id, events)
        request.settle(len(events), None)
        if phase == "ended":
            self._turns.end(live.record)
        elif phase == "queued":
            self._turns.requeue(live.record)

    def _take_back(self, group: Sequence[Work], error: StoreError) -> None:
        """Undo a group of which nothing was committed, and report the error to its writers and to all queued work."""
        appends = [work for work in group if isinstance(work, SqliteAppend)]
        for append in appends:
            append.turn.head.position = append.turn.committed
            append.turn.head.ended = False
        waiting, self._waiting = self._waiting, []
        for work in [*[append.request for append in appends], *waiting, *group]:
            if isinstance(work, AppendRequest):
                work.is_taken = True
                work.settle(len(work.events), error)
            elif isinstance(work, SqliteCall) and not work.future.done():
                work.future.set_exception(error)


def _rows_of(group: Sequence[Work]) -> list[tuple[int, int, int, bytes]]:
    """Return the rows of the events of a group."""
    return [
        (work.row, work.turn.number, work.request.events[-1].position, to_lines(work.request.events))
        for work in group
        if isinstance(work, SqliteAppend) and work.row
    ]


def _insert_rows(connection: sqlite3.Connection, rows: Sequence[tuple[int, int, int, bytes]]) -> None:
    """Insert rows with one statement; `executemany` would run one for each row.

    The interpreter's lock is released for each statement, and to get it back, this thread waits for the event loop.
    """
    places = ", ".join(["(?, ?, ?, ?)"] * len(rows))
    query = f"INSERT INTO event (id, turn, last_position, body) VALUES {places}"
    connection.execute(query, list(chain.from_iterable(rows)))


def _run_call(connection: sqlite3.Connection, call: SqliteCall) -> None:
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


def _write_ending(connection: sqlite3.Connection, append: SqliteAppend, state: TurnState, keeps_outbox: bool) -> None:
    record, number, last = append.turn.record, append.turn.number, append.request.events[-1]
    connection.execute(
        "UPDATE turn SET phase = 'ended', outcome = ?, ended_at = ?, last_position = ?, attachments = NULL"
        " WHERE number = ?",
        (state.outcome, last.at, last.position, number),
    )
    if not append.brief:
        write_state(connection, number, state)
    if keeps_outbox:
        _write_notice(connection, record.id)
    connection.execute("DELETE FROM command WHERE turn_id = ?", (record.id,))
    if tokens := tokens_in(state.usage):
        connection.execute(
            "INSERT INTO spending (principal, day, tokens) VALUES (?, ?, ?)"
            " ON CONFLICT (principal, day) DO UPDATE SET tokens = tokens + excluded.tokens",
            (record.principal, day_of(last.at), tokens),
        )


def _write_notice(connection: sqlite3.Connection, turn_id: str) -> None:
    connection.execute("INSERT OR REPLACE INTO outbox (turn_id, due_at, attempts) VALUES (?, 0, 0)", (turn_id,))


def write_state(connection: sqlite3.Connection, number: int, state: TurnState) -> None:
    query = "UPDATE turn SET folded_answer = ?, state = ? WHERE number = ?"
    connection.execute(query, (folded(state.text), msgspec.json.encode(state), number))


def claim_values(record: TurnRecord, number: int) -> tuple[str | None, int, int | None, int]:
    return record.worker, record.epoch, record.started_at, number


def _write_wait(connection: sqlite3.Connection, live: LiveTurn, until: int) -> None:
    query = "UPDATE turn SET phase = 'waiting', worker = NULL, waiting_until = ? WHERE number = ?"
    connection.execute(query, (until, live.number))


def _write_release(connection: sqlite3.Connection, live: LiveTurn) -> None:
    connection.execute("UPDATE turn SET phase = 'queued', worker = NULL WHERE number = ?", (live.number,))
