"""The SQLite store: the logs of this process's turns, committed in groups to one file.

The folder's lock makes this process the only writer, so heads and leases are kept in memory
and checked there; the disk is written once a group and read only by those who come late.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from turnwire.core import metrics
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import RUNNABLE, Accepted, Admission, Command, NewTurn, Settle, Suspension, Wake
from turnwire.core.errors import StoreError, StoreFullError, StoreUnusableError, TurnEndedError
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.rules import CommitHooks, Head, Leases, ReadyQueue, Watchers, lasting, read_known
from turnwire.stores.sqlite import maintenance, queries
from turnwire.stores.sqlite.admission import accept
from turnwire.stores.sqlite.claims import Claims
from turnwire.stores.sqlite.disk import Ballast, FolderLock
from turnwire.stores.sqlite.live_turn import LiveTurn
from turnwire.stores.sqlite.queries import Readers
from turnwire.stores.sqlite.schema import DATABASE_NAME, explain, open_writer
from turnwire.stores.sqlite.writer import Call, PendingAppend, SqliteWriter, Work

T = TypeVar("T")


class SqliteStore(Claims):
    """The logs here; who runs which turn in `Claims`, what is asked in `Queries`, sessions and keys in `Registry`."""

    is_shared = False

    def __init__(
        self,
        folder: Path,
        *,
        lease: float = 10,
        clock: Callable[[], float] = time.monotonic,
        keeps_outbox: bool = False,
    ) -> None:
        self._folder = folder
        self._keeps_outbox = keeps_outbox
        self._leases = Leases(lease, clock)
        self._watchers = Watchers()
        self._live: dict[str, LiveTurn] = {}
        self._lineup = ReadyQueue()
        self._gatherers = CommitHooks()
        self._waiting: list[Work] = []
        self._is_writing = False
        self._next_row = 1
        self._accepting: set[int] = set()

    async def open(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FolderLock(self._folder)
            self._lock.acquire()
        except OSError as error:
            raise StoreUnusableError(str(self._folder), f"{error.strerror}; give another --data folder") from error
        path = self._folder / DATABASE_NAME
        try:
            connection = open_writer(path)
            try:
                self._live, self._next_row = maintenance.load_unsealed(connection)
            except sqlite3.Error as error:
                connection.close()
                raise StoreUnusableError(str(path), explain(error)) from error
        except StoreUnusableError:
            self._lock.release()
            raise
        for record in (live.record for live in self._live.values() if live.record.phase != "ended"):
            self._lineup.add(record.session_id, record.id, queued=record.phase == "queued")
        self._ballast = Ballast(self._folder)
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._writer = SqliteWriter(connection, self._ballast, self._committed)
        self._writer.keeps_outbox = self._keeps_outbox
        self._writer.is_full = not self._ballast.restore()
        self._readers = Readers(path)

    async def close(self) -> None:
        await self._write(lambda connection: None)  # All that was handed over before is committed now.
        await self._writer.close()
        self._readers.close()
        self._connection.close()
        self._lock.release()

    # Accepting and claiming turns

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        await self._refuse_if_full()
        # The caller may be cancelled; a turn that is committed must be known here all the same.
        return await asyncio.shield(self._accept(new, admission))

    async def _accept(self, new: NewTurn, admission: Admission) -> Accepted:
        row = self._take_row()
        self._accepting.add(row)
        try:
            accepted, number = await self._write(lambda connection: accept(connection, new, admission, row))
            if accepted.created:
                head = Head(accepted.record.id, accepted.record.epoch, accepted.record.last_position)
                live = self._live[accepted.record.id] = LiveTurn(number, accepted.record, head, row)
                live.remember(row, new.opening)
        finally:
            self._accepting.discard(row)
        if accepted.created:
            self._line_up(accepted.record, admission)
            self._watchers.notify(accepted.record.session_id, ())
        elif live := self._live.get(accepted.record.id):
            accepted = Accepted(live.current(), created=False)
        return accepted

    def _line_up(self, record: TurnRecord, admission: Admission) -> None:
        if admission.on_busy == "interrupt":
            for turn_id in self._lineup.unfinished(record.session_id):
                self._take_command(self._live[turn_id], Command(turn_id, "superseded"))
        if self._lineup.add(record.session_id, record.id):
            self._watchers.notify(RUNNABLE, ())

    # Writing logs

    def append(
        self,
        turn_id: str,
        epoch: int,
        events: Sequence[LoggedEvent],
        settle: Settle,
        ending: TurnState | None = None,
        parking: Suspension | None = None,
        *,
        release: bool = False,
    ) -> None:
        live = self._live.get(turn_id)
        if live is None:
            settle(len(events), TurnEndedError(turn_id))
            return
        refusal = live.head.refusal(epoch, events)
        if refusal is None and ending is None and self._writer.is_full:
            refusal = StoreFullError()
        if refusal is not None:
            settle(len(events), refusal)
            return
        live.head.position = events[-1].position
        append = live.open_append
        if append is None or append.settle is not settle:
            append = live.open_append = PendingAppend(live, settle)
            append.row = self._take_row()
            self._hand_over_soon(append)
        append.events.extend(events)
        if ending is not None:
            live.head.ended = True
            append.ending = ending
        if parking is not None:
            append.parking = parking
        append.release = append.release or release

    async def _write(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a function on the writer's connection, in its order among the appends, and waits for the commit."""
        told: asyncio.Future[T] = self._loop.create_future()
        self._hand_over_soon(Call(run, told))
        return await told

    def before_commit(self, gather: Callable[[], None]) -> None:
        if not (self._is_writing or self._gatherers or self._waiting):
            self._loop.call_soon(self._hand_over)
        self._gatherers.add(gather)

    def _hand_over_soon(self, work: Work) -> None:
        if not (self._is_writing or self._gatherers or self._waiting):
            # Not at once: what else this turn of the loop brings goes into the same commit.
            self._loop.call_soon(self._hand_over)
        self._waiting.append(work)

    def _hand_over(self) -> None:
        if self._is_writing:
            return  # One group at a time: if it fails, nothing after it may be written.
        self._is_writing = True
        self._gatherers.run()
        group, self._waiting = self._waiting, []
        if not group:
            self._is_writing = False
            return
        for work in group:
            if isinstance(work, PendingAppend):
                work.turn.open_append = None
        self._writer.submit(group)

    def _committed(self, group: Sequence[Work], error: StoreError | None) -> None:
        self._is_writing = False
        events = sum([len(work.events) for work in group if isinstance(work, PendingAppend)])
        metrics.note_commit(events, self._writer.commit_seconds)
        if error is not None:
            group = [*group, *self._waiting]
            self._waiting = []
            self._take_back(group, error)
            if self._gatherers:
                self._hand_over()
            return
        has_more = bool(self._waiting or self._gatherers)
        must_make_way = has_more and self._writer.is_full
        if has_more and not must_make_way:
            self._hand_over()
        for work in group:
            if isinstance(work, PendingAppend):
                self._publish(work)
            elif work.told.cancelled():
                pass
            elif work.error is not None:
                work.told.set_exception(work.error)
            else:
                work.told.set_result(work.result)
        if must_make_way:
            self._make_way()

    def _make_way(self) -> None:
        """The disk is full: what room the reserve has left is for endings, so that nothing else is written."""
        crowding = {work.turn for work in self._waiting if isinstance(work, PendingAppend) and work.ending is None}
        refused = [work for work in self._waiting if isinstance(work, PendingAppend) and work.turn in crowding]
        self._waiting = [work for work in self._waiting if work not in refused]
        self._hand_over()
        self._take_back(refused, StoreFullError())

    def _publish(self, append: PendingAppend) -> None:
        live, events, ending = append.turn, append.events, append.ending
        live.remember(append.row, events)
        if ending is not None:
            live.record = replace(
                live.record,
                phase="ended",
                outcome=ending.outcome,
                ended_at=events[-1].at,
                options=lasting(live.record.options),
            )
            self._leases.leave(live.record.id)
        elif (parking := append.parking) is not None:
            live.record = replace(live.record, phase="waiting", worker=None, waiting_until=parking.until)
        elif append.release:
            live.record = replace(live.record, phase="queued", worker=None)
        self._watchers.notify(live.record.id, events)
        append.settle(len(events), None)
        if ending is not None or append.release:
            move = self._lineup.queue if ending is None else self._lineup.end
            if move(live.record.session_id, live.record.id):
                self._watchers.notify(RUNNABLE, ())

    def _take_back(self, group: Sequence[Work], error: StoreError) -> None:
        """Nothing of the group was committed, so nothing of it has happened."""
        for work in group:
            if isinstance(work, PendingAppend):
                work.turn.open_append = None
                work.turn.head.position = work.turn.committed
                work.turn.head.ended = False
        for work in group:
            if isinstance(work, PendingAppend):
                work.settle(len(work.events), error)
            elif not work.told.cancelled():
                work.told.set_exception(error)

    def _take_row(self) -> int:
        row = self._next_row
        self._next_row += 1
        return row

    async def _refuse_if_full(self) -> None:
        if self._writer.is_full:
            if not await asyncio.to_thread(self._ballast.restore):
                raise StoreFullError
            self._writer.is_full = False

    # Reading

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_known(self, turn_id, after, limit, epoch)
        live = self._live.get(turn_id)
        if live is not None:
            recent = live.recent(after, limit)
            if recent is not None:
                return recent
            rows = live.rows_after(after, limit)
            events = await self._read(lambda connection: queries.read_rows(connection, rows, after))
            if events is not None:
                return events[:limit]
        return await self._read(lambda connection: queries.read_turn(connection, turn_id, after, limit))

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._watchers.add(key, wake)

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        self._erase_soon()
        record = await self._write(lambda connection: maintenance.delete_turn(connection, principal, turn_id))
        self._live.pop(record.id, None)
        for live in self._live.values():
            if live.record.parent_turn_id == record.id:
                live.record = replace(live.record, parent_turn_id=record.parent_turn_id)

    async def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        return await self._readers.run(run)

    # Upkeep

    async def maintain(self, *, expire_before: int) -> None:
        """In small steps, so that no commit waits long for it."""
        for live in [live for live in self._live.values() if live.record.phase == "ended"]:
            await self._write(lambda connection, live=live: maintenance.seal_turn(connection, live))
            self._live.pop(live.record.id, None)
        needed = [live.first_row for live in self._live.values()]
        first_needed = min([*needed, *self._accepting, self._next_row])
        while await self._write(lambda connection: maintenance.trim_journal(connection, first_needed)):
            pass
        while await self._write(lambda connection: maintenance.expire(connection, expire_before)):
            pass

    def _erase_soon(self) -> None:
        self._writer.must_erase = True

    def _forget(self, session_id: str) -> None:
        for turn_id, live in list(self._live.items()):
            if live.record.session_id == session_id:
                del self._live[turn_id]
        self._watchers.notify(session_id, ())
