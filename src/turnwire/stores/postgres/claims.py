"""Claims, leases, commands and readers.

A claim is one statement: of two workers that want the same turn, one gets it. Every claim raises the epoch, so the next
append of an earlier worker is refused, however late it notices.
"""

import asyncio

from turnwire.core.contracts.stores import RUNNABLE, Command, Worker
from turnwire.core.errors import TurnEndedError, TurnNotFoundError, TurnNotWaitingError, TurnTakenError
from turnwire.core.ids import new_id
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.postgres.connections import DatabaseConnection
from turnwire.stores.postgres.database import PostgresParts
from turnwire.stores.postgres.rows import NOW
from turnwire.stores.rows import RECORD, record_from

_MAX_TAKEN_OVER = 50
_IS_ALIVE = f"EXISTS (SELECT 1 FROM turnwire.worker w WHERE w.id = head.worker AND w.lease_until > {NOW})"
_TAKE = (
    "UPDATE turnwire.head SET phase = 'running', worker = $2, claim = $3, epoch = epoch + 1,"
    f" started_at = coalesce(started_at, {NOW})"
)
_CLAIM = f"""
    WITH h AS (
        {_TAKE} WHERE id = $4 AND (phase IN ('queued', 'waiting') OR worker = $2 OR NOT {_IS_ALIVE}) RETURNING *
    )
    SELECT {RECORD} FROM h JOIN turnwire.turn t ON t.id = h.id
"""
# Rows are locked while they are picked: of two workers that pick at once, neither waits, and each gets other turns.
_PICKED = f"{_TAKE} WHERE id IN (SELECT id FROM picked) RETURNING *"
CLAIM_NEXT = f"""
    WITH picked AS MATERIALIZED (
        SELECT ready.id FROM turnwire.head ready WHERE ready.phase = 'queued' AND NOT EXISTS (
            SELECT 1 FROM turnwire.head earlier
            WHERE earlier.session_id = ready.session_id AND earlier.number < ready.number
        )
        ORDER BY ready.number LIMIT $4 FOR UPDATE SKIP LOCKED
    ), h AS ({_PICKED})
    SELECT {RECORD} FROM h JOIN turnwire.turn t ON t.id = h.id ORDER BY h.number
"""
TAKE_OVER = f"""
    WITH picked AS MATERIALIZED (
        SELECT head.id FROM turnwire.head WHERE head.phase = 'running' AND NOT {_IS_ALIVE}
        ORDER BY head.number LIMIT $4 FOR UPDATE SKIP LOCKED
    ), h AS ({_PICKED})
    SELECT {RECORD} FROM h JOIN turnwire.turn t ON t.id = h.id ORDER BY h.number
"""
_CLAIMED = (
    f"SELECT {RECORD} FROM turnwire.head h JOIN turnwire.turn t ON t.id = h.id WHERE h.worker = $1 AND h.claim = $2"
    " ORDER BY h.number"
)
WORKERS = f"""
    SELECT id, name, started_at, lease_until, draining,
        (SELECT count(*) FROM turnwire.head WHERE head.worker = worker.id AND head.phase = 'running') AS running
    FROM turnwire.worker WHERE lease_until > {NOW} ORDER BY started_at, id
"""
# The head is locked meanwhile, so that the turn cannot end between the check and the insert and leave a command behind.
_COMMAND = """
    WITH target AS (
        SELECT id, worker FROM turnwire.head WHERE id = $1 FOR KEY SHARE
    ), filed AS (
        INSERT INTO turnwire.command (turn_id, kind, reason) SELECT id, $2, $3 FROM target ON CONFLICT DO NOTHING
    )
    SELECT worker FROM target
"""


class PostgresClaims(PostgresParts):
    """Claims in the database."""

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        # Earlier appends of this process are committed first, as they would be with a single queue.
        await self._writer.settled(turn_id)

        async def call(connection: DatabaseConnection, is_retry: bool) -> TurnRecord:
            # A repeated claim of the same worker only raises the epoch once more.
            row = await connection.fetchrow(_CLAIM, self._now(), worker, None, turn_id)
            if row is not None:
                return record_from(row)
            raise await _claim_error(connection, turn_id)

        return await self.connections.run(call)

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        return await self._claim_some(CLAIM_NEXT, worker, limit)

    async def take_over(self, worker: str) -> list[TurnRecord]:
        return await self._claim_some(TAKE_OVER, worker, _MAX_TAKEN_OVER)

    async def _claim_some(self, query: str, worker: str, limit: int) -> list[TurnRecord]:
        claim = new_id()

        async def call(connection: DatabaseConnection, is_retry: bool) -> list[TurnRecord]:
            if is_retry:
                # The worker must know of the turns that the first attempt has claimed for it.
                claimed = await connection.fetch(_CLAIMED, worker, claim)
                if claimed:
                    return [record_from(row) for row in claimed]
            rows = await connection.fetch(query, self._now(), worker, claim, limit)
            return [record_from(row) for row in rows]

        return await self.connections.run(call)

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        query = f"""
            WITH h AS (
                UPDATE turnwire.head SET epoch = epoch + 1 WHERE id = $1 AND phase = 'waiting' RETURNING *
            )
            SELECT {RECORD} FROM h JOIN turnwire.turn t ON t.id = h.id
        """

        async def call(connection: DatabaseConnection, is_retry: bool) -> TurnRecord:
            row = await connection.fetchrow(query, turn_id)
            if row is not None:
                return record_from(row)
            if await connection.fetchval("SELECT 1 FROM turnwire.turn WHERE id = $1", turn_id):
                raise TurnNotWaitingError(turn_id)
            raise TurnNotFoundError(turn_id)

        return await self.connections.run(call)

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        query = f"""
            INSERT INTO turnwire.worker (id, name, started_at, lease_until, draining)
            VALUES ($2, $3, {NOW}, {NOW} + $4, $5)
            ON CONFLICT (id) DO UPDATE SET name = excluded.name, lease_until = excluded.lease_until,
                draining = excluded.draining
        """
        self._notifier.add_worker(worker)
        await self._leasing.execute(query, self._now(), worker, name, self._lease_ms, draining)

    async def retire(self, worker: str) -> None:
        await self.connections.execute("DELETE FROM turnwire.worker WHERE id = $1", worker)

    async def workers(self) -> list[Worker]:
        return [Worker(**dict(row)) for row in await self.connections.fetch(WORKERS, self._now())]

    async def command(self, command: Command) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> str | None:
            row = await connection.fetchrow(_COMMAND, command.turn_id, command.kind, command.reason)
            if row is not None:
                return row[0]
            query = "SELECT 1 FROM turnwire.turn WHERE id = $1"
            if await connection.fetchval(query, command.turn_id):
                raise TurnEndedError(command.turn_id)
            raise TurnNotFoundError(command.turn_id)

        self._notifier.changed(await self.connections.run(call) or RUNNABLE)

    async def commands(self, worker: str) -> list[Command]:
        query = """
            SELECT c.turn_id, c.reason, c.kind FROM turnwire.command c JOIN turnwire.head h ON h.id = c.turn_id
            WHERE h.worker = $1 OR h.worker IS NULL ORDER BY h.number
        """
        rows = await self.connections.fetch(query, worker)
        return [Command(turn_id, reason, kind) for turn_id, reason, kind in rows]

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        if present:
            change = (
                "INSERT INTO turnwire.reader (turn_id, worker)"
                " SELECT id, $2 FROM turnwire.head WHERE id = $1 FOR KEY SHARE ON CONFLICT DO NOTHING"
            )
        else:
            change = "DELETE FROM turnwire.reader WHERE turn_id = $1 AND worker = $2"
        query = f"""
            SELECT EXISTS (SELECT 1 FROM turnwire.reader a JOIN turnwire.worker w ON w.id = a.worker
            WHERE a.turn_id = $2 AND w.lease_until > {NOW})
        """

        async def call(connection: DatabaseConnection, is_retry: bool) -> bool:
            async with connection.transaction():
                await connection.execute(change, turn_id, worker)
                return await connection.fetchval(query, self._now(), turn_id)

        # One at a time, in order: a reader may come and go at once, and the two calls may use two connections.
        lock = self._attend_locks.setdefault(turn_id, asyncio.Lock())
        async with lock:
            return await self.connections.run(call)


async def _claim_error(connection: DatabaseConnection, turn_id: str) -> Exception:
    query = "SELECT h.id IS NULL FROM turnwire.turn t LEFT JOIN turnwire.head h ON h.id = t.id WHERE t.id = $1"
    match await connection.fetchval(query, turn_id):
        case None:
            return TurnNotFoundError(turn_id)
        case True:
            return TurnEndedError(turn_id)
        case _:
            return TurnTakenError(turn_id)
