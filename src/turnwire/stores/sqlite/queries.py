"""Reads of logs and turns: live turns from memory, all others from the database."""

from collections.abc import Callable

from turnwire.core.contracts.stores import JournalEntry, Seal, TurnFilter, Wake
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.lines import SealedLogs, event_page, state_from
from turnwire.stores.rules import read_with_epoch
from turnwire.stores.sqlite.live_turn import LiveTurns
from turnwire.stores.sqlite.rows import (
    TURN_COLUMNS,
    find_turn,
    read_ended,
    read_journal,
    read_rows,
    read_seal,
    read_turn,
    turn_from,
)
from turnwire.stores.sqlite.schema import mentions

# Ids grow with time, so the position of a deleted turn can still be found.
NEXT = (
    f"SELECT {TURN_COLUMNS} FROM turn WHERE session_id = ?"
    " AND number > coalesce((SELECT number FROM turn WHERE id = ?),"
    " (SELECT max(number) FROM turn WHERE session_id = ? AND id < ?), 0) ORDER BY number LIMIT 1"
)
HISTORY = """
    WITH RECURSIVE chain (id, parent, state, depth, found) AS (
        SELECT id, parent_turn_id, NULL, 0, 0 FROM turn WHERE id = ?
        UNION ALL
        SELECT turn.id, turn.parent_turn_id, turn.state, depth + 1, found + (turn.state IS NOT NULL)
        FROM chain JOIN turn ON turn.id = chain.parent WHERE found < ?
    )
    SELECT state FROM chain WHERE state IS NOT NULL ORDER BY depth DESC
"""


class SqliteQueries:
    def __init__(self, readers: SqliteThreads, searchers: SqliteThreads, turns: LiveTurns) -> None:
        self._readers = readers
        self._searchers = searchers
        self._turns = turns
        self._sealed_logs = SealedLogs()

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_with_epoch(self.read, turn_id, after, limit, epoch)
        live = self._turns.by_id.get(turn_id)
        if live is not None:
            recent = live.recent(after, limit)
            if recent is not None:
                return event_page(recent, limit)
            rows = live.rows_after(after, limit)
            events = await self._readers.run(lambda connection: read_rows(connection, rows, after))
            if events is not None:
                return event_page(events, limit)
        return await self._readers.run(
            lambda connection: read_turn(connection, self._sealed_logs, turn_id, after, limit)
        )

    async def journal(self, turn_id: str) -> list[JournalEntry]:
        return await self._readers.run(lambda connection: read_journal(connection, turn_id))

    async def seal(self, turn_id: str) -> Seal | None:
        return await self._readers.run(lambda connection: read_seal(connection, turn_id))

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        return await self._readers.run(lambda connection: read_ended(connection, after_turn_id, limit))

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        live = self._turns.by_id.get(turn_id)
        if live is not None and live.record.principal == principal:
            return live.current()
        return self._turns.current(
            await self._readers.run(lambda connection: find_turn(connection, turn_id, principal))
        )

    async def list_turns(
        self, principal: str, *, session_id: str | None = None, limit: int = 50, where: TurnFilter | None = None
    ) -> list[TurnRecord]:
        where = where or TurnFilter()
        conditions, values = ["principal = ?"], [principal]
        if where.search:
            condition, terms = mentions("message", where.search)
            conditions.append(condition)
            values += terms
        for condition, value in (
            ("session_id = ?", session_id),
            ("agent = ?", where.agent),
            ("coalesce(outcome, phase) = ?", where.status),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        for comparison, turn_id in (("<", where.before), (">", where.after)):
            if turn_id is not None:
                conditions.append(f"number {comparison} (SELECT number FROM turn WHERE id = ?)")
                values.append((await self.find_turn(principal, turn_id)).id)
        order = "DESC" if where.after is None else "ASC"
        query = f"SELECT {TURN_COLUMNS} FROM turn WHERE {' AND '.join(conditions)} ORDER BY number {order} LIMIT ?"
        threads = self._searchers if where.search else self._readers
        rows = await threads.run(lambda connection: connection.execute(query, (*values, limit)).fetchall())
        turns = [self._turns.current(turn_from(row)) for row in rows]
        return turns if where.after is not None else turns[::-1]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        values = (session_id, after_turn_id, session_id, after_turn_id)
        row = await self._readers.run(lambda connection: connection.execute(NEXT, values).fetchone())
        return self._turns.current(turn_from(row)) if row else None

    async def unfinished(self, session_id: str) -> list[TurnRecord]:
        return [self._turns.by_id[turn_id].current() for turn_id in self._turns.queue.unfinished(session_id)]

    async def under_way(self, principal: str | None, limit: int) -> list[TurnRecord]:
        turns = [live for live in self._turns.by_id.values() if live.record.phase != "ended"]
        return [live.current() for live in turns if principal in (None, live.record.principal)][:limit]

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        if (live := self._turns.by_id.get(turn_id)) and live.record.parent_turn_id is None:
            return []
        rows = await self._readers.run(lambda connection: connection.execute(HISTORY, (turn_id, limit)).fetchall())
        return [state for row in rows if (state := state_from(row[0]))]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        query = "SELECT state, phase FROM turn WHERE id = ?"
        row = await self._readers.run(lambda connection: connection.execute(query, (turn_id,)).fetchone())
        if row is None:
            raise TurnNotFoundError(turn_id)
        if row[0] is None and row[1] == "ended":
            return (await fold_log(self, turn_id)).state()  # It ended while the disk was full.
        return state_from(row[0])

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._turns.watchers.add(key, wake)

    async def tokens_used(self, principal: str, day: int) -> int:
        query = "SELECT tokens FROM spending WHERE principal = ? AND day = ?"
        row = await self._readers.run(lambda connection: connection.execute(query, (principal, day)).fetchone())
        return row[0] if row else 0
