"""The upkeep of logs: sealing, trimming events, expiring and erasing."""

import sqlite3

from turnwire.core.log.codec import now_ms
from turnwire.core.log.follow import PAGE
from turnwire.core.log.seals import make_seal
from turnwire.core.log.state import TurnFold
from turnwire.stores.blobs import expire_blobs
from turnwire.stores.lines import encode_seal, seal, to_lines, unseal, without_marks
from turnwire.stores.sqlite.database import SqliteParts
from turnwire.stores.sqlite.live_turn import LiveTurn
from turnwire.stores.sqlite.rows import read_calls, read_rows
from turnwire.stores.sqlite.writer import write_state

_TRIM_STEP = 2_000
_EXPIRE_STEP = 100


class SqliteMaintenance(SqliteParts):
    """Seals, expires and trims logs.

    `max_whole_logs` bounds the ended turns whose events are kept, for a store whose room is bounded.
    """

    max_whole_logs: int | None = None

    async def maintain(self, *, expire_before: int) -> None:
        # In small steps, so that no commit waits long.
        for live in [live for live in self._turns.by_id.values() if live.record.phase == "ended"]:
            await self._writer.write(lambda connection, live=live: self._seal(connection, live))
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
        while await self._writer.write(lambda connection: _expire(connection, expire_before, self.max_whole_logs)):
            pass
        await expire_blobs(self._database, expire_before)

    def _seal(self, connection: sqlite3.Connection, live: LiveTurn) -> None:
        """Move the log and the recorded calls of an ended turn into one compressed row.

        The rows of its events are trimmed later.
        """
        marked = connection.execute("UPDATE turn SET sealed = 1 WHERE number = ? AND sealed = 0", (live.number,))
        if marked.rowcount == 0:
            return  # The turn was deleted meanwhile, or another call of `maintain` sealed it.
        _complete_state(connection, live)
        lines = to_lines(live.tail) if self._turns.keeps_logs else _read_lines(connection, live)
        calls = read_calls(connection, live.number)
        evidence = encode_seal(make_seal(live.record.id, lines, calls, self.seal_key, now_ms()))
        query = "INSERT INTO sealed_log (turn, body, calls, seal) VALUES (?, ?, ?, ?)"
        connection.execute(query, (live.number, seal(lines), seal(calls) if calls else None, evidence))
        if calls:
            connection.execute("DELETE FROM call WHERE turn = ?", (live.number,))

    async def complete_states(self) -> None:
        """Write the states of the turns that ended while the disk was full."""
        for live in [live for live in self._turns.by_id.values() if live.record.phase == "ended"]:
            await self._writer.write(lambda connection, live=live: _complete_state(connection, live))


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


def _read_lines(connection: sqlite3.Connection, live: LiveTurn) -> bytes:
    rows = [connection.execute("SELECT body FROM event WHERE id = ?", (row,)).fetchone() for row in live.rows]
    return b"\n".join(row[0] for row in rows)


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


def _expire(connection: sqlite3.Connection, before: int, max_whole: int | None) -> bool:
    """Drop the journal and all events but the last one of some old turns. Return True if there may be more."""
    surplus = "SELECT number FROM turn WHERE sealed AND first_kept = 1 ORDER BY number DESC LIMIT 1 OFFSET ?"
    query = (
        "SELECT number, last_position, body, seal FROM turn JOIN sealed_log ON turn = number"
        f" WHERE first_kept = 1 AND (ended_at < ? OR number <= ({surplus})) LIMIT {_EXPIRE_STEP}"
    )
    rows = connection.execute(query, (before, 2**62 if max_whole is None else max_whole)).fetchall()
    for number, last_position, body, evidence in rows:
        query = "UPDATE sealed_log SET body = ?, calls = NULL, seal = ? WHERE turn = ?"
        connection.execute(query, (seal(unseal(body)[-1]), without_marks(evidence), number))
        connection.execute("UPDATE turn SET first_kept = ? WHERE number = ?", (last_position, number))
    return len(rows) == _EXPIRE_STEP
