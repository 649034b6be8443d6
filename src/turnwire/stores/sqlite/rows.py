"""The conversion of rows: into records, and rows of events and sealed logs into events."""

import json
import sqlite3
from collections.abc import Iterable, Sequence

from turnwire.core.errors import EventsGoneError, TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.lines import PAGE_BYTES, SealedLogs, event_page, from_lines, page_of
from turnwire.stores.rows import RECORD, TURN, record_from

_READ = f"SELECT {RECORD}, t.number, t.first_row FROM {TURN}".replace("turnwire.", "")


def read_unsealed(connection: sqlite3.Connection) -> list[tuple[TurnRecord, int, int]]:
    """Return the turns that are not sealed, in the order of acceptance, with numbers and first rows in `event`."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    rows = cursor.execute(f"{_READ} WHERE sealed = 0 ORDER BY t.number").fetchall()
    return [(record_from(row), row["number"], row["first_row"]) for row in rows]


def read_rows(connection: sqlite3.Connection, rows: Sequence[int], after: int) -> list[LoggedEvent] | None:
    """Return the events of these rows, up to the one that fills a page.

    None if a row is gone because the log was sealed meanwhile.
    """
    query = "SELECT event.id, body, last_position FROM json_each(?) JOIN event ON event.id = value ORDER BY event.id"
    cursor = connection.execute(query, (json.dumps(list(rows)),))
    found: list[tuple[bytes, int]] = []
    size = 0
    for expected in rows:
        row = cursor.fetchone()
        if row is None or row[0] != expected:
            return None
        size += len(row[1]) if found else 0
        found.append(row[1:])
        if size >= PAGE_BYTES:
            break
    return _events(found, after)


def read_turn(
    connection: sqlite3.Connection, sealed_logs: SealedLogs, turn_id: str, after: int, limit: int
) -> list[LoggedEvent]:
    """Return events of any turn, live or sealed. Raises TurnNotFoundError, EventsGoneError."""
    connection.execute("BEGIN")  # One view of the database: sealing moves events from one table to another.
    try:
        query = "SELECT number, first_row, sealed, first_kept FROM turn WHERE id = ?"
        row = connection.execute(query, (turn_id,)).fetchone()
        if row is None:
            raise TurnNotFoundError(turn_id)
        number, first_row, sealed, first_kept = row
        if after + 1 < first_kept:
            raise EventsGoneError(turn_id, after, first_kept)
        if sealed:
            lines = sealed_logs.get(number, first_kept)
            if lines is None:
                body = connection.execute("SELECT body FROM sealed_log WHERE turn = ?", (number,)).fetchone()[0]
                lines = sealed_logs.add(number, first_kept, body)
            start = after + 1 - first_kept
            return from_lines(page_of(lines, start, limit), after + 1)
        query = (
            "SELECT body, last_position FROM event WHERE id >= ? AND turn = ? AND last_position > ? ORDER BY id LIMIT ?"
        )
        return event_page(_events(connection.execute(query, (first_row, number, after, limit)), after), limit)
    finally:
        connection.execute("COMMIT")


def read_calls(connection: sqlite3.Connection, number: int) -> bytes:
    """Return the lines of the journal of a turn that is not sealed."""
    query = "SELECT body FROM call WHERE turn = ? ORDER BY id"
    return b"\n".join(row[0] for row in connection.execute(query, (number,)))


def _events(rows: Iterable[tuple[bytes, int]], after: int) -> list[LoggedEvent]:
    """Return the events of these rows, up to the row that fills a page.

    The first row does not count, because most of it may be before the page.
    """
    events: list[LoggedEvent] = []
    size = 0
    for body, last_position in rows:
        lines = body.split(b"\n")
        size += len(body) if events else 0
        events += from_lines(lines, last_position - len(lines) + 1)
        if size >= PAGE_BYTES:
            break
    # The first row may begin at or before `after`.
    return events[after + 1 - events[0].position :] if events else []
