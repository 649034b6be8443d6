"""Reads of logs and turns."""

import math

from turnwire.core.contracts.stores import JournalEntry, Seal, TurnFilter, is_short
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.stores.lines import SealedLogs, decode_seal, state_from
from turnwire.stores.postgres.connections import Connections
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.rows import (
    RECORD,
    TURN,
    UNFINISHED,
    comparable,
    folded,
    read_journal,
    read_log,
    record_from,
)


class PostgresQueries:
    def __init__(self, connections: Connections, notifier: CommitNotifier) -> None:
        self._connections = connections
        self._notifier = notifier
        self._sealed_logs = SealedLogs()

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        # A reader waits for as long as the database is away, without an error.
        events = await self._connections.run(
            lambda connection, _: read_log(connection, self._sealed_logs, turn_id, after, limit, epoch),
            retry_for=math.inf,
        )
        if is_short(events, limit):
            self._notifier.waits_at(turn_id, events[-1].position if events else after)
        return events

    async def journal(self, turn_id: str) -> list[JournalEntry]:
        return await self._connections.run(lambda connection, _: read_journal(connection, turn_id))

    async def seal(self, turn_id: str) -> Seal | None:
        query = (
            "SELECT s.seal FROM turnwire.turn t LEFT JOIN turnwire.sealed_log s ON s.turn = t.number WHERE t.id = $1"
        )
        row = await self._connections.fetchrow(query, comparable(turn_id))
        if row is None:
            raise TurnNotFoundError(turn_id)
        return decode_seal(row[0])

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        query = f"SELECT {RECORD} FROM {TURN} WHERE t.id > $1 AND t.outcome IS NOT NULL ORDER BY t.id LIMIT $2"
        return [record_from(row) for row in await self._connections.fetch(query, comparable(after_turn_id), limit)]

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        query = (
            f"SELECT {RECORD} FROM {TURN} WHERE t.principal = $1 AND (t.id = $2 OR t.external_id = $2)"
            # A client's own id comes before a turn's id that happens to be equal.
            " ORDER BY t.external_id = $2 DESC NULLS LAST LIMIT 1"
        )
        row = await self._connections.fetchrow(query, principal, comparable(turn_id))
        if row is None:
            raise TurnNotFoundError(turn_id)
        return record_from(row)

    async def list_turns(
        self, principal: str, *, session_id: str | None = None, limit: int = 50, where: TurnFilter | None = None
    ) -> list[TurnRecord]:
        where = where or TurnFilter()
        conditions, values = ["t.principal = $2"], [limit, principal]
        for condition, value in (
            ("t.session_id = ${}", None if session_id is None else comparable(session_id)),
            ("t.agent = ${}", None if where.agent is None else comparable(where.agent)),
            ("coalesce(t.outcome, h.phase) = ${}", where.status),
            ("strpos(t.folded_message, ${}) > 0", folded(where.search) if where.search else None),
        ):
            if value is not None:
                values.append(value)
                conditions.append(condition.format(len(values)))
        for comparison, turn_id in (("<", where.before), (">", where.after)):
            if turn_id is not None:
                values.append((await self.find_turn(principal, turn_id)).id)
                conditions.append(f"t.number {comparison} (SELECT number FROM turnwire.turn WHERE id = ${len(values)})")
        order = "DESC" if where.after is None else "ASC"
        query = f"SELECT {RECORD} FROM {TURN} WHERE {' AND '.join(conditions)} ORDER BY t.number {order} LIMIT $1"
        turns = [record_from(row) for row in await self._connections.fetch(query, *values)]
        return turns if where.after is not None else turns[::-1]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        query = (
            f"SELECT {RECORD} FROM {TURN} WHERE t.session_id = $1"
            # Ids grow with time, so the position of a deleted turn can still be found.
            " AND t.number > coalesce((SELECT number FROM turnwire.turn WHERE id = $2),"
            " (SELECT max(number) FROM turnwire.turn WHERE session_id = $1 AND id < $2), 0)"
            " ORDER BY t.number LIMIT 1"
        )
        row = await self._connections.fetchrow(query, comparable(session_id), after_turn_id)
        return record_from(row) if row else None

    async def unfinished(self, session_id: str) -> list[TurnRecord]:
        query = f"SELECT {RECORD} FROM {UNFINISHED} WHERE h.session_id = $1 ORDER BY h.number"
        return [record_from(row) for row in await self._connections.fetch(query, session_id)]

    async def under_way(self, principal: str | None, limit: int) -> list[TurnRecord]:
        where = "h.principal = coalesce($1, h.principal)"
        query = f"SELECT {RECORD} FROM {UNFINISHED} WHERE {where} ORDER BY h.number LIMIT $2"
        return [record_from(row) for row in await self._connections.fetch(query, principal, limit)]

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        query = """
            WITH RECURSIVE chain (id, parent, state, depth, found) AS (
                SELECT id, parent_turn_id, NULL::bytea, 0, 0 FROM turnwire.turn WHERE id = $1
                UNION ALL
                SELECT t.id, t.parent_turn_id, t.state, depth + 1, found + (t.state IS NOT NULL)::int
                FROM chain JOIN turnwire.turn t ON t.id = chain.parent WHERE found < $2
            )
            SELECT state FROM chain WHERE state IS NOT NULL ORDER BY depth DESC
        """
        rows = await self._connections.fetch(query, turn_id, limit)
        return [state for row in rows if (state := state_from(row[0]))]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        query = "SELECT state FROM turnwire.turn WHERE id = $1"
        row = await self._connections.fetchrow(query, turn_id)
        if row is None:
            raise TurnNotFoundError(turn_id)
        return state_from(row[0])

    async def tokens_used(self, principal: str, day: int) -> int:
        query = "SELECT tokens FROM turnwire.spending WHERE principal = $1 AND day = $2"
        return await self._connections.fetchval(query, principal, day) or 0
