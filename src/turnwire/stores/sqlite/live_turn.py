"""What the writing process remembers of a turn until its log is sealed."""

import json
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from turnwire.core.budget import day_of, tokens_in
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Command, Suspension
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.rules import Head, lasting

if TYPE_CHECKING:
    from turnwire.stores.sqlite.writer import PendingAppend

_TAIL = 128


class LiveTurn:
    """Its head (who may write, and where), its newest events, and which journal rows are its own."""

    __slots__ = (
        "command",
        "committed",
        "first_row",
        "head",
        "number",
        "open_append",
        "record",
        "row_ends",
        "rows",
        "tail",
    )

    def __init__(self, number: int, record: TurnRecord, head: Head, first_row: int) -> None:
        self.number = number
        self.record = record
        self.head = head
        self.first_row = first_row
        self.committed = head.position
        self.tail: list[LoggedEvent] = []
        self.rows = array("q")
        self.row_ends = array("q")
        self.open_append: PendingAppend | None = None
        self.command: Command | None = None

    def current(self) -> TurnRecord:
        return replace(self.record, last_position=self.committed)

    def add_row(self, row: int, last_position: int) -> None:
        self.rows.append(row)
        self.row_ends.append(last_position)

    def remember(self, row: int, events: Sequence[LoggedEvent]) -> None:
        """Takes in what has been committed."""
        self.committed = events[-1].position
        self.rows.append(row)
        self.row_ends.append(self.committed)
        self.tail.extend(events)
        if len(self.tail) > 2 * _TAIL:
            del self.tail[:-_TAIL]

    def recent(self, after: int, limit: int) -> list[LoggedEvent] | None:
        """The committed events after a position, if they are still in memory."""
        if after >= self.committed:
            return []
        if not self.tail or after + 1 < self.tail[0].position:
            return None
        start = after + 1 - self.tail[0].position
        return self.tail[start : start + limit]

    def rows_after(self, after: int, limit: int) -> list[int]:
        """The journal rows that hold so many events after a position."""
        start = bisect_right(self.row_ends, after)
        end = bisect_left(self.row_ends, after + limit) + 1
        return self.rows[start:end].tolist()

    def write_parking(self, connection: sqlite3.Connection, parking: Suspension) -> None:
        query = "UPDATE turn SET phase = 'waiting', worker = NULL, waiting_until = ? WHERE number = ?"
        connection.execute(query, (parking.until, self.number))
        query = "INSERT OR REPLACE INTO checkpoint (turn, body) VALUES (?, ?)"
        connection.execute(query, (self.number, parking.checkpoint))

    def write_release(self, connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE turn SET phase = 'queued', worker = NULL WHERE number = ?", (self.number,))

    def write_ending(
        self, connection: sqlite3.Connection, last: LoggedEvent, state: TurnState, *, keeps_outbox: bool
    ) -> None:
        connection.execute(
            "UPDATE turn SET phase = 'ended', outcome = ?, ended_at = ?, last_position = ?, answer = ?, state = ?"
            " WHERE number = ?",
            (state.outcome, last.at, last.position, state.text, msgspec.json.encode(state), self.number),
        )
        if keeps_outbox:
            connection.execute("INSERT INTO outbox (turn, due_at, attempts) VALUES (?, 0, 0)", (self.number,))
        if self.record.waiting_until is not None:
            connection.execute("DELETE FROM checkpoint WHERE turn = ?", (self.number,))
        connection.execute("DELETE FROM command WHERE turn = ?", (self.number,))
        if (options := lasting(self.record.options)) != self.record.options:
            connection.execute("UPDATE turn SET options = ? WHERE number = ?", (json.dumps(options), self.number))
        if tokens := tokens_in(state.usage):
            connection.execute(
                "INSERT INTO spending (principal, day, tokens) VALUES (?, ?, ?)"
                " ON CONFLICT (principal, day) DO UPDATE SET tokens = tokens + excluded.tokens",
                (self.record.principal, day_of(last.at), tokens),
            )
