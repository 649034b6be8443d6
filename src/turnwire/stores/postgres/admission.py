"""The acceptance of a turn.

The transaction holds the principal's lock, so limits are exact, a key is used once, and the turns of a session are
numbered in the order of their commits.
"""

import asyncio

from turnwire.core.contracts.stores import RUNNABLE, Accepted, Admission, NewTurn, SqlConnection
from turnwire.core.log.files import default_title
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import day_of
from turnwire.stores.admission import TURN_COLUMNS, Acceptance, accept_turn, turn_values
from turnwire.stores.lines import to_lines
from turnwire.stores.postgres.connections import DatabaseConnection, NoPartition
from turnwire.stores.postgres.database import PostgresParts, hold_lock
from turnwire.stores.postgres.schema import ensure_partition
from turnwire.stores.rows import folded

# `TURN_COLUMNS` are $1 to $15.
_INSERT = f"""
    WITH new AS (
        INSERT INTO turnwire.turn ({", ".join(TURN_COLUMNS)}, day)
        VALUES ({", ".join(f"${number}" for number in range(1, len(TURN_COLUMNS) + 2))}) RETURNING *
    ), begun AS (
        INSERT INTO turnwire.head (id, number, day, session_id, principal, phase, epoch, last_position, waiting_until)
        SELECT id, number, day, session_id, principal, $17, $18, $19, $20 FROM new
    ), opened AS (
        INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body)
        SELECT day, number, $19, 1, $18, $21 FROM new
    )
    UPDATE turnwire.session SET updated_at = new.created_at, title = coalesce(title, $22),
        folded_title = coalesce(folded_title, $23) FROM new WHERE session.id = new.session_id
    RETURNING new.number
"""


class PostgresAdmission(PostgresParts):
    """Accepts turns, and wakes the workers of all processes."""

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        # Workers must hear of a committed turn even if the caller is cancelled.
        return await asyncio.shield(self._create(new, admission))

    async def _create(self, new: NewTurn, admission: Admission) -> Accepted:
        async def accept(connection: DatabaseConnection, is_retry: bool) -> Acceptance:
            async with connection.transaction():
                await hold_lock(connection, new.record.principal)
                return await accept_turn(connection, self._database, new, admission, _insert_turn, is_retry=is_retry)

        async def call(connection: DatabaseConnection, is_retry: bool) -> Acceptance:
            try:
                return await accept(connection, is_retry)
            except NoPartition:
                # The day has no partition yet: no maintenance has run since the day before.
                await ensure_partition(connection, day_of(new.record.created_at))
            return await accept(connection, is_retry)

        acceptance = await self.connections.run(call)
        accepted = acceptance.accepted
        if accepted.created:
            self._notifier.accepted(accepted.record.session_id, acceptance.number)
            for key in {RUNNABLE, *(turn.worker for turn in acceptance.superseded if turn.worker)}:
                self._notifier.changed(key)
        return accepted


async def _insert_turn(connection: SqlConnection, new: NewTurn, record: TurnRecord) -> int:
    title = default_title(record)
    return await connection.fetchval(
        _INSERT,
        *turn_values(new, record),
        *(day_of(record.created_at), record.phase, record.epoch, record.last_position, record.waiting_until),
        *(to_lines(new.opening), title, folded(title)),
    )
