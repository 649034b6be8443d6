"""What is done to logs beside writing them: sealed, expired, and dropped with the day they are from.

Any process may do it. Each step is a transaction of its own with a lock that only one process can have, so that the
others go on with their work and nobody waits long.
"""

import asyncio
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from turnwire.core.budget import day_of
from turnwire.core.codec import now_ms
from turnwire.stores.lines import seal, unseal
from turnwire.stores.postgres.connections import DatabaseConnection, LockNotAvailable
from turnwire.stores.postgres.parts import NOW, StorePart
from turnwire.stores.postgres.schema import UPKEEP_LOCK, drop_partitions, ensure_partition

_STEP = 50
_DEAD_WORKER_MS = 86_400_000


class LogMaintenance(StorePart):
    async def maintain(self, *, expire_before: int) -> None:
        today = day_of(now_ms())
        await self._run(lambda connection, _: ensure_partition(connection, today, today + 1))
        while await self._run(lambda connection, _: _seal_some(connection)):
            pass
        while await self._run(lambda connection, _: _expire_some(connection, expire_before)):
            pass
        await self._run(lambda connection, _: _drop_old(connection, today - 1))
        query = f"DELETE FROM turnwire.worker WHERE lease_until < {NOW} - {_DEAD_WORKER_MS}"
        await self._run(lambda connection, _: connection.execute(query, self._now()))


async def _is_mine(connection: DatabaseConnection) -> bool:
    return await connection.fetchval(f"SELECT pg_try_advisory_xact_lock({UPKEEP_LOCK})")


async def _seal_some(connection: DatabaseConnection) -> bool:
    """Moves the logs of some ended turns into one compressed row each. True if there may be more.

    What they leave behind in their partition goes with it.
    """
    async with connection.transaction():
        if not await _is_mine(connection):
            return False
        query = (
            "SELECT number, day FROM turnwire.turn WHERE NOT sealed AND ended_at IS NOT NULL"
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
        logs = {turn: b"\n".join(row[1] for row in found) for turn, found in groupby(rows, itemgetter(0))}
        bodies = await asyncio.to_thread(lambda: [seal(logs[number]) for number in numbers])
        query = "INSERT INTO turnwire.sealed_log (turn, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])"
        await connection.execute(query, numbers, bodies)
        await connection.execute("UPDATE turnwire.turn SET sealed = true WHERE number = ANY($1)", numbers)
        return len(turns) == _STEP


async def _expire_some(connection: DatabaseConnection, before: int) -> bool:
    """Drops the events of some old turns, all but the last one. True if there may be more."""
    async with connection.transaction():
        if not await _is_mine(connection):
            return False
        query = (
            "SELECT t.number, t.day, s.body FROM turnwire.turn t JOIN turnwire.sealed_log s ON s.turn = t.number"
            f" WHERE t.first_kept = 1 AND t.ended_at < $1 AND t.sealed LIMIT {_STEP} FOR UPDATE OF t SKIP LOCKED"
        )
        turns = await connection.fetch(query, before)
        if not turns:
            return False
        numbers = [row[0] for row in turns]
        bodies = await asyncio.to_thread(lambda: [seal(unseal(row[2])[-1]) for row in turns])
        query = (
            "UPDATE turnwire.sealed_log s SET body = u.body"
            " FROM unnest($1::bigint[], $2::bytea[]) AS u (number, body) WHERE s.turn = u.number"
        )
        await connection.execute(query, numbers, bodies)
        query = "UPDATE turnwire.turn SET first_kept = last_position WHERE number = ANY($1)"
        await connection.execute(query, numbers)
        query = "DELETE FROM turnwire.event WHERE day = ANY($1) AND turn = ANY($2)"
        await connection.execute(query, [*{row[1] for row in turns}], numbers)
        return len(turns) == _STEP


async def _drop_old(connection: DatabaseConnection, before: int) -> None:
    # Somebody may be reading there. The next time will do.
    with suppress(LockNotAvailable):
        await drop_partitions(connection, before)
