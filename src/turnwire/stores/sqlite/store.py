"""The SQLite store: the logs of this process's turns, committed in groups to one file.

The folder's lock makes this process the only writer, so heads and leases are kept in memory
and checked there; the disk is written once a group and read only by those who come late.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from turnwire.core import metrics
from turnwire.core.contracts import Accepted, Admission, NewTurn, Parking, Settle, Wake, Worker
from turnwire.core.errors import (
    StoreError,
    StoreFullError,
    StoreUnusableError,
    TurnEndedError,
    TurnNotFoundError,
    TurnNotWaitingError,
)
from turnwire.core.logged import LoggedEvent, now_ms
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.guards import Gatherers, Head, Leases, Watchers, lasting
from turnwire.stores.sqlite import accepting, reading, upkeep
from turnwire.stores.sqlite.disk import Ballast, FolderLock
from turnwire.stores.sqlite.live import LiveTurn
from turnwire.stores.sqlite.readers import Readers
from turnwire.stores.sqlite.registry import Registry
from turnwire.stores.sqlite.schema import DATABASE_NAME, explain, open_writer
from turnwire.stores.sqlite.writer import Append, Call, Work, Writer

T = TypeVar("T")


class SqliteStore(Registry):
    """Turns and logs here; sessions and keys, which are plain tables, in `Registry`."""

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
        self._gatherers = Gatherers()
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
                self._live, self._next_row = upkeep.load_unsealed(connection)
            except sqlite3.Error as error:
                connection.close()
                raise StoreUnusableError(str(path), explain(error)) from error
        except StoreUnusableError:
            self._lock.release()
            raise
        self._ballast = Ballast(self._folder)
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._writer = Writer(connection, self._ballast, self._committed)
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
            accepted, number = await self._write(lambda connection: accepting.accept(connection, new, admission, row))
            if accepted.created:
                head = Head(accepted.record.id, accepted.record.epoch, accepted.record.last_position)
                live = self._live[accepted.record.id] = LiveTurn(number, accepted.record, head, row)
                live.remember(row, new.opening)
        finally:
            self._accepting.discard(row)
        if accepted.created:
            self._watchers.notify(accepted.record.session_id, ())
        elif live := self._live.get(accepted.record.id):
            accepted = Accepted(live.current(), created=False)
        return accepted

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        live = self._live.get(turn_id)
        if live is None:
            await self._read(lambda connection: reading.find_turn(connection, turn_id))
            raise TurnEndedError(turn_id)
        epoch = live.head.claim(worker)
        started_at = live.record.started_at or now_ms()
        live.record = replace(live.record, phase="running", worker=worker, epoch=epoch, started_at=started_at)
        query = "UPDATE turn SET phase = 'running', worker = ?, epoch = ?, started_at = ? WHERE number = ?"
        await self._write(lambda connection: connection.execute(query, (worker, epoch, started_at, live.number)))
        return live.current()

    async def renew(self, worker: str) -> None:
        self._leases.renew(worker)

    async def take_over(self, worker: str) -> list[TurnRecord]:
        lost = [
            turn_id
            for turn_id, live in self._live.items()
            if live.record.phase == "running" and not live.head.ended and not self._leases.holds(live.record.worker)
        ]
        taken: list[TurnRecord] = []
        for turn_id in lost:
            # It may end while the ones before it are claimed.
            with suppress(TurnEndedError, TurnNotFoundError):
                taken.append(await self.claim(turn_id, worker))
        return taken

    async def workers(self) -> list[Worker]:
        return self._leases.workers()

    async def unfinished(self, principal: str | None, limit: int) -> list[TurnRecord]:
        live = [one for one in self._live.values() if one.record.phase != "ended"]
        return [one.current() for one in live if principal in (None, one.record.principal)][:limit]

    async def queued(self) -> list[TurnRecord]:
        return [live.current() for live in self._live.values() if live.record.phase == "queued"]

    async def waiting(self) -> list[TurnRecord]:
        return [live.current() for live in self._live.values() if live.record.phase == "waiting"]

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        live = self._live.get(turn_id)
        if live is None or live.record.phase != "waiting" or live.head.ended:
            await self._read(lambda connection: reading.find_turn(connection, turn_id))
            raise TurnNotWaitingError(turn_id)
        epoch = live.head.claim(worker)
        live.record = replace(live.record, epoch=epoch)
        query = "UPDATE turn SET epoch = ? WHERE number = ?"
        await self._write(lambda connection: connection.execute(query, (epoch, live.number)))
        return live.current()

    async def checkpoint(self, turn_id: str) -> bytes:
        query = "SELECT body FROM checkpoint WHERE turn = (SELECT number FROM turn WHERE id = ?)"
        row = await self._read(lambda connection: connection.execute(query, (turn_id,)).fetchone())
        return row[0] if row else b""

    # Writing logs

    def append(
        self,
        turn_id: str,
        epoch: int,
        events: Sequence[LoggedEvent],
        settle: Settle,
        ending: TurnState | None = None,
        parking: Parking | None = None,
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
            append = live.open_append = Append(live, settle)
            append.row = self._take_row()
            self._hand_over_soon(append)
        append.events.extend(events)
        if ending is not None:
            live.head.ended = True
            append.ending = ending
        if parking is not None:
            append.parking = parking

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
            if isinstance(work, Append):
                work.turn.open_append = None
        self._writer.submit(group)

    def _committed(self, group: Sequence[Work], error: StoreError | None) -> None:
        self._is_writing = False
        events = sum([len(work.events) for work in group if isinstance(work, Append)])
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
            if isinstance(work, Append):
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
        crowding = {work.turn for work in self._waiting if isinstance(work, Append) and work.ending is None}
        refused = [work for work in self._waiting if isinstance(work, Append) and work.turn in crowding]
        self._waiting = [work for work in self._waiting if work not in refused]
        self._hand_over()
        self._take_back(refused, StoreFullError())

    def _publish(self, append: Append) -> None:
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
        elif (parking := append.parking) is not None:
            live.record = replace(live.record, phase="waiting", worker=None, waiting_until=parking.until)
        self._watchers.notify(live.record.id, events)
        append.settle(len(events), None)

    def _take_back(self, group: Sequence[Work], error: StoreError) -> None:
        """Nothing of the group was committed, so nothing of it has happened."""
        for work in group:
            if isinstance(work, Append):
                work.turn.open_append = None
                work.turn.head.position = work.turn.committed
                work.turn.head.ended = False
        for work in group:
            if isinstance(work, Append):
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

    async def read(self, turn_id: str, after: int, limit: int) -> list[LoggedEvent]:
        live = self._live.get(turn_id)
        if live is not None:
            recent = live.recent(after, limit)
            if recent is not None:
                return recent
            rows = live.rows_after(after, limit)
            events = await self._read(lambda connection: reading.read_rows(connection, rows, after))
            if events is not None:
                return events[:limit]
        return await self._read(lambda connection: reading.read_turn(connection, turn_id, after, limit))

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._watchers.add(key, wake)

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        live = self._live.get(turn_id)
        if live is None or live.record.principal != principal:
            record = await self._read(lambda connection: reading.find_turn(connection, turn_id, principal))
            return self._fresh(record)
        return live.current()

    async def list_turns(self, principal: str, *, session_id: str | None = None, limit: int = 50) -> list[TurnRecord]:
        query = (
            f"SELECT {reading.TURN_COLUMNS} FROM turn WHERE principal = ? AND (? IS NULL OR session_id = ?)"
            " ORDER BY number DESC LIMIT ?"
        )
        values = (principal, session_id, session_id, limit)
        rows = await self._read(lambda connection: connection.execute(query, values).fetchall())
        return [self._fresh(reading.turn_from(row)) for row in reversed(rows)]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        query = (
            f"SELECT {reading.TURN_COLUMNS} FROM turn WHERE session_id = ?"
            # Ids grow with time, so the place of one that was deleted is known all the same.
            " AND number > coalesce((SELECT number FROM turn WHERE id = ?),"
            " (SELECT max(number) FROM turn WHERE session_id = ? AND id < ?), 0) ORDER BY number LIMIT 1"
        )
        values = (session_id, after_turn_id, session_id, after_turn_id)
        row = await self._read(lambda connection: connection.execute(query, values).fetchone())
        return self._fresh(reading.turn_from(row)) if row else None

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        self._erase_soon()
        record = await self._write(lambda connection: upkeep.delete_turn(connection, principal, turn_id))
        self._live.pop(record.id, None)
        for live in self._live.values():
            if live.record.parent_turn_id == record.id:
                live.record = replace(live.record, parent_turn_id=record.parent_turn_id)

    def _fresh(self, record: TurnRecord) -> TurnRecord:
        live = self._live.get(record.id)
        return live.current() if live else record

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        query = """
            WITH RECURSIVE chain (id, parent, state, depth, found) AS (
                SELECT id, parent_turn_id, NULL, 0, 0 FROM turn WHERE id = ?
                UNION ALL
                SELECT turn.id, turn.parent_turn_id, turn.state, depth + 1, found + (turn.state IS NOT NULL)
                FROM chain JOIN turn ON turn.id = chain.parent WHERE found < ?
            )
            SELECT state FROM chain WHERE state IS NOT NULL ORDER BY depth DESC
        """
        if (live := self._live.get(turn_id)) and live.record.parent_turn_id is None:
            return []
        rows = await self._read(lambda connection: connection.execute(query, (turn_id, limit)).fetchall())
        return [state for row in rows if (state := reading.state_from(row[0]))]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        query = "SELECT state FROM turn WHERE id = ?"
        row = await self._read(lambda connection: connection.execute(query, (turn_id,)).fetchone())
        if row is None:
            raise TurnNotFoundError(turn_id)
        return reading.state_from(row[0])

    async def tokens_used(self, principal: str, day: int) -> int:
        query = "SELECT tokens FROM spending WHERE principal = ? AND day = ?"
        row = await self._read(lambda connection: connection.execute(query, (principal, day)).fetchone())
        return row[0] if row else 0

    async def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        return await self._readers.run(run)

    # Upkeep

    async def maintain(self, *, expire_before: int) -> None:
        """In small steps, so that no commit waits long for it."""
        for live in [live for live in self._live.values() if live.record.phase == "ended"]:
            await self._write(lambda connection, live=live: upkeep.seal_turn(connection, live))
            self._live.pop(live.record.id, None)
        needed = [live.first_row for live in self._live.values()]
        first_needed = min([*needed, *self._accepting, self._next_row])
        while await self._write(lambda connection: upkeep.trim_journal(connection, first_needed)):
            pass
        while await self._write(lambda connection: upkeep.expire(connection, expire_before)):
            pass

    def _erase_soon(self) -> None:
        self._writer.must_erase = True

    def _forget(self, session_id: str) -> None:
        for turn_id, live in list(self._live.items()):
            if live.record.session_id == session_id:
                del self._live[turn_id]
        self._watchers.notify(session_id, ())
