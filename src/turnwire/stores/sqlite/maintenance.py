"""The upkeep of logs: sealing, trimming events, expiring and erasing."""

import sqlite3

from turnwire.core.errors import SessionBusyError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.follow import PAGE
from turnwire.core.log.seals import make_seal
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.lines import encode_seal, seal, unseal, without_marks
from turnwire.stores.sqlite.blobs import expire_blobs, release_blobs
from turnwire.stores.sqlite.live_turn import LiveTurn, LiveTurns
from turnwire.stores.sqlite.rows import find_turn, read_calls, read_rows
from turnwire.stores.sqlite.writer import SqliteWriter, write_state

_TRIM_STEP = 2_000
_EXPIRE_STEP = 100


class SqliteMaintenance:
    def __init__(self, writer: SqliteWriter, turns: LiveTurns, seal_key: bytes | None) -> None:
        self._writer = writer
        self._turns = turns
        self._seal_key = seal_key

    async def maintain(self, *, expire_before: int) -> None:
        # In small steps, so that no commit waits long.
        for live in [live for live in self._turns.by_id.values() if live.record.phase == "ended"]:
            await self._writer.write(lambda connection, live=live: _seal(connection, live, self._seal_key))
            self._turns.by_id.pop(live.record.id, None)
        first_needed = self._turns.first_needed_row()
        while await self._writer.write(lambda connection: _trim_events(connection, first_needed)):
            pass
        # A turn that waits for a person may need an early row for days; the later rows of sealed turns are deleted.
        live = [turn.number for turn in self._turns.by_id.values()]
        first_new = self._turns.first_new_row()
        after = first_needed - 1
        while after is not None:
            after = await self._writer.write(
                lambda connection, after=after: _trim_between(connection, live, after, first_new)
            )
        while await self._writer.write(lambda connection: _expire(connection, expire_before)):
            pass
        while await self._writer.write(lambda connection: expire_blobs(connection, expire_before)):
            pass

    async def complete_states(self) -> None:
        """Write the states of the turns that ended while the disk was full."""
        for live in [live for live in self._turns.by_id.values() if live.record.phase == "ended"]:
            await self._writer.write(lambda connection, live=live: _complete_state(connection, live))

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        record = await self._writer.write(lambda connection: _delete_turn(connection, principal, turn_id), erases=True)
        self._turns.forget_turn(record)


def _complete_state(connection: sqlite3.Connection, live: LiveTurn) -> None:
    query = "SELECT 1 FROM turn WHERE number = ? AND state IS NULL AND phase = 'ended'"
    if connection.execute(query, (live.number,)).fetchone() is None:
        return
    fold, position = TurnFold(), 0
    while events := read_rows(connection, live.rows_after(position, PAGE), position):
        for event in events:
            fold.add(event)
        position = events[-1].position
    write_state(connection, live.number, fold.state())


def _seal(connection: sqlite3.Connection, live: LiveTurn, key: bytes | None) -> None:
    """Move the log and the recorded calls of an ended turn into one compressed row.

    The rows of its events are trimmed later.
    """
    marked = connection.execute("UPDATE turn SET sealed = 1 WHERE number = ? AND sealed = 0", (live.number,))
    if marked.rowcount == 0:
        return  # The turn was deleted meanwhile, or another call of `maintain` sealed it.
    _complete_state(connection, live)
    rows = [connection.execute("SELECT body FROM event WHERE id = ?", (row,)).fetchone() for row in live.rows]
    lines = b"\n".join(row[0] for row in rows)
    calls = read_calls(connection, live.number)
    evidence = encode_seal(make_seal(live.record.id, lines, calls, key, now_ms()))
    query = "INSERT INTO sealed_log (turn, body, calls, seal) VALUES (?, ?, ?, ?)"
    connection.execute(query, (live.number, seal(lines), seal(calls) if calls else None, evidence))
    if calls:
        connection.execute("DELETE FROM call WHERE turn = ?", (live.number,))


def _trim_events(connection: sqlite3.Connection, first_needed: int) -> bool:
    """Delete some rows that no unsealed turn needs. Return True if there may be more."""
    query = "DELETE FROM event WHERE id IN (SELECT id FROM event WHERE id < ? ORDER BY id LIMIT ?)"
    return connection.execute(query, (first_needed, _TRIM_STEP)).rowcount == _TRIM_STEP


def _trim_between(connection: sqlite3.Connection, live: list[int], after: int, before: int) -> int | None:
    """Delete the rows of sealed turns in the next step. Return the last row seen, or None if there are no more."""
    query = "SELECT id, turn FROM event WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
    rows = connection.execute(query, (after, before, _TRIM_STEP)).fetchall()
    kept = set(live)
    connection.executemany("DELETE FROM event WHERE id = ?", [(row,) for row, turn in rows if turn not in kept])
    return rows[-1][0] if len(rows) == _TRIM_STEP else None


def _expire(connection: sqlite3.Connection, before: int) -> bool:
    """Drop the journal and all events but the last one of some old turns. Return True if there may be more."""
    query = (
        "SELECT number, last_position, body, seal FROM turn JOIN sealed_log ON turn = number"
        f" WHERE first_kept = 1 AND ended_at < ? LIMIT {_EXPIRE_STEP}"
    )
    rows = connection.execute(query, (before,)).fetchall()
    for number, last_position, body, evidence in rows:
        query = "UPDATE sealed_log SET body = ?, calls = NULL, seal = ? WHERE turn = ?"
        connection.execute(query, (seal(unseal(body)[-1]), without_marks(evidence), number))
        connection.execute("UPDATE turn SET first_kept = ? WHERE number = ?", (last_position, number))
    return len(rows) == _EXPIRE_STEP


def _delete_turn(connection: sqlite3.Connection, principal: str, turn_id: str) -> TurnRecord:
    record = find_turn(connection, turn_id, principal)
    if record.phase != "ended":
        raise SessionBusyError(record.session_id, 1)
    release_blobs(connection, record.id)
    erase_turns(connection, "id", record.id)
    query = "UPDATE turn SET parent_turn_id = ? WHERE session_id = ? AND parent_turn_id = ?"
    connection.execute(query, (record.parent_turn_id, record.session_id, record.id))
    return record


def erase_turns(connection: sqlite3.Connection, column: str, value: str) -> None:
    """Delete the turns with this value in a column, and all that belongs to them."""
    for table in ("sealed_log", "event", "call", "checkpoint", "command", "blob_use", "outbox"):
        connection.execute(f"DELETE FROM {table} WHERE turn IN (SELECT number FROM turn WHERE {column} = ?)", (value,))
    connection.execute(f"DELETE FROM annotation WHERE turn_id IN (SELECT id FROM turn WHERE {column} = ?)", (value,))
    connection.execute(f"DELETE FROM turn WHERE {column} = ?", (value,))
