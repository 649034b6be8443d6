"""What is done to logs beside writing them: found again after a restart, sealed, trimmed, expired, erased."""

import sqlite3

from turnwire.core.contracts import Command
from turnwire.core.errors import SessionBusyError
from turnwire.core.turns import TurnRecord
from turnwire.stores.lines import seal, unseal
from turnwire.stores.rules import Head
from turnwire.stores.sqlite.live_turn import LiveTurn
from turnwire.stores.sqlite.queries import TURN_COLUMNS, find_turn, turn_from

_STEP = 2_000


def load_unsealed(connection: sqlite3.Connection) -> tuple[dict[str, LiveTurn], int]:
    """The turns whose events are in the journal, in the order they were accepted, and the next free row."""
    by_number: dict[int, LiveTurn] = {}
    query = f"SELECT {TURN_COLUMNS}, number, first_row FROM turn WHERE sealed = 0 ORDER BY number"
    for row in connection.execute(query):
        record = turn_from(row[:-2])
        head = Head(record.id, record.epoch, 0, ended=record.phase == "ended")
        by_number[row[-2]] = LiveTurn(row[-2], record, head, row[-1])
    for number, kind, reason in connection.execute("SELECT turn, kind, reason FROM command"):
        if live := by_number.get(number):
            live.command = Command(live.record.id, reason, kind)
    last_row = 0
    for last_row, number, last_position in connection.execute(
        "SELECT id, turn, last_position FROM journal ORDER BY id"
    ):
        if live := by_number.get(number):
            live.add_row(last_row, last_position)
            live.committed = live.head.position = last_position
    return {live.record.id: live for live in by_number.values()}, last_row + 1


def seal_turn(connection: sqlite3.Connection, live: LiveTurn) -> None:
    """Moves the log of an ended turn into one compressed row. Its journal rows are trimmed later."""
    marked = connection.execute("UPDATE turn SET sealed = 1 WHERE number = ? AND sealed = 0", (live.number,))
    if marked.rowcount == 0:
        return  # The session was deleted in the meantime, or somebody else was faster.
    found = [connection.execute("SELECT body FROM journal WHERE id = ?", (row,)).fetchone() for row in live.rows]
    lines = b"\n".join(row[0] for row in found)
    connection.execute("INSERT INTO sealed_log (turn, body) VALUES (?, ?)", (live.number, seal(lines)))


def trim_journal(connection: sqlite3.Connection, first_needed: int) -> bool:
    """Deletes some rows that no unsealed turn needs. True if there may be more."""
    query = "DELETE FROM journal WHERE id IN (SELECT id FROM journal WHERE id < ? ORDER BY id LIMIT ?)"
    return connection.execute(query, (first_needed, _STEP)).rowcount == _STEP


def expire(connection: sqlite3.Connection, before: int) -> bool:
    """Drops the events of some old turns, all but the last one. True if there may be more."""
    query = (
        "SELECT number, last_position, body FROM turn JOIN sealed_log ON turn = number"
        " WHERE first_kept = 1 AND ended_at < ? LIMIT 100"
    )
    found = connection.execute(query, (before,)).fetchall()
    for number, last_position, body in found:
        connection.execute("UPDATE sealed_log SET body = ? WHERE turn = ?", (seal(unseal(body)[-1]), number))
        connection.execute("UPDATE turn SET first_kept = ? WHERE number = ?", (last_position, number))
    return len(found) == 100


def delete_turn(connection: sqlite3.Connection, principal: str, turn_id: str) -> TurnRecord:
    """Erases an ended turn. Raises TurnNotFoundError, SessionBusyError."""
    record = find_turn(connection, turn_id, principal)
    if record.phase != "ended":
        raise SessionBusyError(record.session_id, 1)
    (number,) = connection.execute("SELECT number FROM turn WHERE id = ?", (record.id,)).fetchone()
    for table in ("sealed_log", "journal", "checkpoint", "command"):
        connection.execute(f"DELETE FROM {table} WHERE turn = ?", (number,))
    connection.execute("DELETE FROM turn WHERE number = ?", (number,))
    query = "UPDATE turn SET parent_turn_id = ? WHERE session_id = ? AND parent_turn_id = ?"
    connection.execute(query, (record.parent_turn_id, record.session_id, record.id))
    return record
