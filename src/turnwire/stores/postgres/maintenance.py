"""The upkeep of logs: sealing, expiring, erasing, and dropping the partitions of old days.

Any process may do it. Each step is one short transaction, and a lock lets one process at a time do it.
"""

import asyncio
from itertools import groupby
from operator import itemgetter

from turnwire.core.log.codec import now_ms
from turnwire.core.log.seals import make_seal
from turnwire.core.people.budget import day_of
from turnwire.stores.blobs import expire_blobs
from turnwire.stores.lines import encode_seal, seal, unseal, without_marks
from turnwire.stores.postgres.connections import DatabaseConnection
from turnwire.stores.postgres.database import PostgresParts
from turnwire.stores.postgres.rows import NOW
from turnwire.stores.postgres.schema import UPKEEP_LOCK, drop_partitions, ensure_partition

_STEP = 50
_DEAD_WORKER_MS = 86_400_000


class PostgresMaintenance(PostgresParts):
    """Seals and expires logs, in the small steps of any process."""

    async def maintain(self, *, expire_before: int) -> None:
        run = self.connections.run
        today = day_of(now_ms())
        await run(lambda connection, _: ensure_partition(connection, today, today + 1))
        while await run(lambda connection, _: _seal_some(connection, self._seal_key)):
            pass
        while await run(lambda connection, _: _expire_some(connection, expire_before)):
            pass
        await expire_blobs(self._database, expire_before)
        await run(lambda connection, _: drop_partitions(connection, today - 1))
        query = f"DELETE FROM turnwire.worker WHERE lease_until < {NOW} - {_DEAD_WORKER_MS}"
        await self.connections.execute(query, self._now())


async def _lock_upkeep(connection: DatabaseConnection) -> bool:
    return await connection.fetchval(f"SELECT pg_try_advisory_xact_lock({UPKEEP_LOCK})")


async def _seal_some(connection: DatabaseConnection, key: bytes | None) -> bool:
    """Move the logs and journals of some ended turns into one compressed row each. Return True if there may be more.

    Their events stay in the partition until it is dropped.
    """
    async with connection.transaction():
        if not await _lock_upkeep(connection):
            return False
        query = (
            "SELECT number, day, id FROM turnwire.turn WHERE NOT sealed AND ended_at IS NOT NULL"
            f" ORDER BY day, number LIMIT {_STEP} FOR UPDATE SKIP LOCKED"
        )
        turns = await connection.fetch(query)
        if not turns:
            return False
        numbers, days = [row[0] for row in turns], [row[1] for row in turns]
        query = (
            "SELECT e.turn, e.body FROM unnest($1::bigint[], $2::int[]) AS u (number, day) JOIN turnwire.event e"
            " ON e.day = u.day AND e.turn = u.number ORDER BY e.turn, e.last_position"
        )
        rows = await connection.fetch(query, numbers, days)
        logs = {turn: b"\n".join(row[1] for row in group) for turn, group in groupby(rows, itemgetter(0))}
        query = "SELECT turn, body FROM turnwire.call WHERE turn = ANY($1) ORDER BY turn, id"
        rows = await connection.fetch(query, numbers)
        calls = {turn: b"\n".join(row[1] for row in group) for turn, group in groupby(rows, itemgetter(0))}
        bodies = await asyncio.to_thread(lambda: [seal(logs[number]) for number in numbers])
        sealed_calls = await asyncio.to_thread(lambda: {turn: seal(lines) for turn, lines in calls.items()})
        seals = await asyncio.to_thread(
            lambda: [
                encode_seal(make_seal(turn_id, logs[number], calls.get(number, b""), key, now_ms()))
                for number, _, turn_id in turns
            ]
        )
        query = (
            "INSERT INTO turnwire.sealed_log (turn, body, calls, seal)"
            " SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[])"
        )
        await connection.execute(query, numbers, bodies, [sealed_calls.get(number) for number in numbers], seals)
        if calls:
            await connection.execute("DELETE FROM turnwire.call WHERE turn = ANY($1)", [*calls])
        await connection.execute("UPDATE turnwire.turn SET sealed = true WHERE number = ANY($1)", numbers)
        return len(turns) == _STEP


async def _expire_some(connection: DatabaseConnection, before: int) -> bool:
    """Drop the journal and all events but the last one of some old turns. Return True if there may be more."""
    async with connection.transaction():
        if not await _lock_upkeep(connection):
            return False
        query = (
            "SELECT t.number, t.day, s.body, s.seal"
            " FROM turnwire.turn t JOIN turnwire.sealed_log s ON s.turn = t.number"
            f" WHERE t.first_kept = 1 AND t.ended_at < $1 AND t.sealed LIMIT {_STEP} FOR UPDATE OF t SKIP LOCKED"
        )
        turns = await connection.fetch(query, before)
        if not turns:
            return False
        numbers = [row[0] for row in turns]
        bodies = await asyncio.to_thread(lambda: [seal(unseal(row[2])[-1]) for row in turns])
        query = (
            "UPDATE turnwire.sealed_log s SET body = u.body, calls = NULL, seal = u.seal"
            " FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) AS u (number, body, seal) WHERE s.turn = u.number"
        )
        await connection.execute(query, numbers, bodies, [without_marks(row[3]) for row in turns])
        query = "UPDATE turnwire.turn SET first_kept = last_position WHERE number = ANY($1)"
        await connection.execute(query, numbers)
        query = "DELETE FROM turnwire.event WHERE day = ANY($1) AND turn = ANY($2)"
        await connection.execute(query, [*{row[1] for row in turns}], numbers)
        return len(turns) == _STEP
