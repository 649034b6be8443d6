"""The turns that the writing process keeps in memory, until their logs are sealed.

The folder's lock makes this process the only writer, so memory decides who may write, and the disk follows.
"""

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec.structs import replace

from turnwire.core.contracts.stores import RUNNABLE, Command
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.turns import Phase, TurnRecord
from turnwire.stores.rules import Leases, LogHead, ReadyQueue, Watchers
from turnwire.stores.sqlite.rows import read_unsealed

_TAIL = 128
_WHOLE_LOG = 2**62


class LiveTurn:
    """A turn's head (who may write, and where), its newest events, and its rows in `event`."""

    __slots__ = (
        "command",
        "committed",
        "first_row",
        "has_unwritten_claim",
        "head",
        "max_tail",
        "number",
        "record",
        "row_ends",
        "rows",
        "tail",
    )

    def __init__(
        self, number: int, record: TurnRecord, head: LogHead, first_row: int, max_tail: int = 2 * _TAIL
    ) -> None:
        self.number = number
        self.record = record
        self.head = head
        self.first_row = first_row
        self.committed = head.position
        self.max_tail = max_tail
        self.tail: list[LoggedEvent] = []
        self.rows = array("q")
        self.row_ends = array("q")
        self.command: Command | None = None
        self.has_unwritten_claim = False
        """The claim counts here, but could not be committed: the turn's next commit has it."""

    def current(self) -> TurnRecord:
        if self.record.last_position != self.committed:
            self.record = replace(self.record, last_position=self.committed)
        return self.record

    def add_row(self, row: int, last_position: int) -> None:
        self.rows.append(row)
        self.row_ends.append(last_position)

    def add_committed(self, row: int, events: Sequence[LoggedEvent]) -> None:
        """Take in events that have been committed as one row."""
        self.committed = events[-1].position
        self.add_row(row, self.committed)
        self.tail.extend(events)
        if len(self.tail) > self.max_tail:
            del self.tail[:-_TAIL]

    def recent(self, after: int, limit: int) -> list[LoggedEvent] | None:
        """Return the committed events after a position, or None if they are not in memory any more."""
        if after >= self.committed:
            return []
        if not self.tail or after + 1 < self.tail[0].position:
            return None
        start = after + 1 - self.tail[0].position
        return self.tail[start : start + limit]

    def rows_after(self, after: int, limit: int) -> list[int]:
        """Return the rows of `event` that hold the next `limit` events after a position."""
        start = bisect_right(self.row_ends, after)
        end = bisect_left(self.row_ends, after + limit) + 1
        return self.rows[start:end].tolist()


class LiveTurns:
    """All live turns by id, with the queue, the leases and the watchers of this process.

    If it `keeps_logs`, live turns keep all of their events in memory, and the table `event` stays empty.
    """

    def __init__(self, leases: Leases, *, keeps_logs: bool = False) -> None:
        self.keeps_logs = keeps_logs
        self.by_id: dict[str, LiveTurn] = {}
        self.queue = ReadyQueue()
        self.leases = leases
        self.watchers = Watchers()
        self.next_row = 1
        self.accepting: set[int] = set()
        """The first rows in `event` of turns whose acceptance is not committed yet."""

    def load(self, connection: sqlite3.Connection) -> None:
        """Read the turns whose events are still in `event`, in the order of acceptance."""
        by_number: dict[int, LiveTurn] = {}
        for record, number, first_row in read_unsealed(connection):
            head = LogHead(record.id, record.epoch, 0, ended=record.phase == "ended")
            by_number[number] = self.by_id[record.id] = LiveTurn(number, record, head, first_row)
            if record.phase != "ended":
                self.queue.add(record.session_id, record.id, queued=record.phase == "queued")
        for turn_id, kind, reason in connection.execute("SELECT turn_id, kind, reason FROM command"):
            if live := self.by_id.get(turn_id):
                live.command = Command(turn_id, reason, kind)
        query = "SELECT id, turn, last_position FROM event ORDER BY id"
        for row, number, last_position in connection.execute(query):
            self.next_row = row + 1
            if live := by_number.get(number):
                live.add_row(row, last_position)
                live.committed = live.head.position = last_position

    def add(self, number: int, record: TurnRecord, row: int, opening: Sequence[LoggedEvent]) -> None:
        """Add a turn that has been accepted; `row` has its opening events."""
        head = LogHead(record.id, record.epoch, record.last_position)
        max_tail = _WHOLE_LOG if self.keeps_logs else 2 * _TAIL
        live = self.by_id[record.id] = LiveTurn(number, record, head, row, max_tail)
        live.add_committed(row, opening)

    def adopt(self, lost: "LiveTurns") -> None:
        """Take over the turns of a store in memory that was lost."""
        self.by_id, self.queue, self.next_row = lost.by_id, lost.queue, lost.next_row

    def take_row(self) -> int:
        row = self.next_row
        self.next_row += 1
        return row

    def first_needed_row(self) -> int:
        """Return the first row of `event` that a live turn or an acceptance under way still needs."""
        return min([*[live.first_row for live in self.by_id.values()], *self.accepting, self.next_row])

    def first_new_row(self) -> int:
        """Return the first row of `event` that may belong to a turn that is not live yet."""
        return min([*self.accepting, self.next_row])

    def current(self, record: TurnRecord) -> TurnRecord:
        """Return the newest version of a record that was read from the database."""
        live = self.by_id.get(record.id)
        return live.current() if live else record

    def in_phase(self, phase: Phase) -> list[TurnRecord]:
        return [live.current() for live in self.by_id.values() if live.record.phase == phase]

    def take_command(self, live: LiveTurn, command: Command) -> None:
        """Keep a committed command, and wake the worker of its turn."""
        if live.record.phase != "ended":
            live.command = live.command or command
            self.watchers.notify(live.record.worker or "", ())

    def enqueue(self, record: TurnRecord, *, queued: bool) -> None:
        """Add a newly accepted turn to its session, and queue it unless it waits."""
        self._wake_workers(self.queue.add(record.session_id, record.id, queued=queued))

    def requeue(self, record: TurnRecord) -> None:
        """Queue a turn again that its worker released."""
        self._wake_workers(self.queue.queue(record.session_id, record.id))

    def end(self, record: TurnRecord) -> None:
        """Take an ended turn out of its session's queue."""
        self._wake_workers(self.queue.end(record.session_id, record.id))

    def _wake_workers(self, is_ready: bool) -> None:
        if is_ready:
            self.watchers.notify(RUNNABLE, ())

    def forget_turn(self, record: TurnRecord) -> None:
        """Drop a turn that was erased; turns that continue it continue the one before it."""
        self.by_id.pop(record.id, None)
        for live in self.by_id.values():
            if live.record.parent_turn_id == record.id:
                live.record = replace(live.record, parent_turn_id=record.parent_turn_id)

    def forget_session(self, session_id: str) -> None:
        """Drop the turns of a session that was erased."""
        for turn_id, live in list(self.by_id.items()):
            if live.record.session_id == session_id:
                del self.by_id[turn_id]
