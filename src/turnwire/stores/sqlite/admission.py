"""The acceptance of a turn."""

import sqlite3

from turnwire.core.contracts.stores import Accepted, Admission, Command, NewTurn, SqlConnection
from turnwire.core.log.files import default_title
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.admission import TURN_COLUMNS, Acceptance, accept_turn, turn_values
from turnwire.stores.lines import to_lines
from turnwire.stores.rows import folded
from turnwire.stores.sqlite.database import SqliteConnection, SqliteParts, run_now

_COLUMNS = (*TURN_COLUMNS, "phase", "epoch", "last_position", "first_kept", "waiting_until", "first_row")
_INSERT = f"""
    INSERT INTO turn ({", ".join(_COLUMNS)}) VALUES ({", ".join(f"${n}" for n in range(1, len(_COLUMNS) + 1))})
    RETURNING number
"""


class SqliteAdmission(SqliteParts):
    """Accepts turns, and makes them live."""

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        await self._writer.refuse_if_full()
        turns, row = self._turns, self._turns.take_row()

        async def insert(connection: SqlConnection, new: NewTurn, record: TurnRecord) -> int:
            number = await _insert_turn(connection, new, record, row)
            if not turns.keeps_logs:
                query = "INSERT INTO event (id, turn, last_position, body) VALUES ($1, $2, $3, $4)"
                await connection.execute(query, row, number, record.last_position, to_lines(new.opening))
            return number

        def accept(connection: sqlite3.Connection) -> Acceptance:
            coroutine = accept_turn(
                SqliteConnection(connection), self._database, new, admission, insert, is_retry=False
            )
            return run_now(coroutine)

        turns.accepting.add(row)
        try:
            acceptance = await self._writer.write(accept)
            accepted, record = acceptance.accepted, acceptance.accepted.record
            if accepted.created:
                turns.add(acceptance.number, record, row, new.opening)
        finally:
            turns.accepting.discard(row)
        if not accepted.created:
            return Accepted(turns.current(record), created=False)
        for superseded in acceptance.superseded:
            turns.take_command(turns.by_id[superseded.id], Command(superseded.id, "superseded"))
        turns.enqueue(record, queued=record.phase == "queued")
        turns.watchers.notify(record.session_id, ())
        return accepted


async def _insert_turn(connection: SqlConnection, new: NewTurn, record: TurnRecord, row: int) -> int:
    position = (record.phase, record.epoch, record.last_position, record.first_kept, record.waiting_until, row)
    number = await connection.fetchval(_INSERT, *turn_values(new, record), *position)
    title = default_title(record)
    query = (
        "UPDATE session SET updated_at = $2, title = coalesce(title, $3), folded_title = coalesce(folded_title, $4)"
        " WHERE id = $1"
    )
    await connection.execute(query, record.session_id, record.created_at, title, folded(title))
    return number
