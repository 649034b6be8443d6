"""What is asked about turns; for those of this process, memory knows it best."""

from turnwire.core.errors import TurnNotFoundError
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.sqlite import reading
from turnwire.stores.sqlite.live import LiveTurn
from turnwire.stores.sqlite.registry import Registry


class Queries(Registry):
    _live: dict[str, LiveTurn]

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        live = self._live.get(turn_id)
        if live is None or live.record.principal != principal:
            record = await self._read(lambda connection: reading.find_turn(connection, turn_id, principal))
            return self._fresh(record)
        return live.current()

    async def list_turns(self, principal: str, *, session_id: str | None = None, limit: int = 50) -> list[TurnRecord]:
        query = (
            f"SELECT {reading.TURN_COLUMNS} FROM turn WHERE principal = ? AND (? IS NULL OR session_id = ?)"
            " ORDER BY number DESC LIMIT ?"
        )
        values = (principal, session_id, session_id, limit)
        rows = await self._read(lambda connection: connection.execute(query, values).fetchall())
        return [self._fresh(reading.turn_from(row)) for row in reversed(rows)]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        query = (
            f"SELECT {reading.TURN_COLUMNS} FROM turn WHERE session_id = ?"
            # Ids grow with time, so the place of one that was deleted is known all the same.
            " AND number > coalesce((SELECT number FROM turn WHERE id = ?),"
            " (SELECT max(number) FROM turn WHERE session_id = ? AND id < ?), 0) ORDER BY number LIMIT 1"
        )
        values = (session_id, after_turn_id, session_id, after_turn_id)
        row = await self._read(lambda connection: connection.execute(query, values).fetchone())
        return self._fresh(reading.turn_from(row)) if row else None

    def _fresh(self, record: TurnRecord) -> TurnRecord:
        live = self._live.get(record.id)
        return live.current() if live else record

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        query = """
            WITH RECURSIVE chain (id, parent, state, depth, found) AS (
                SELECT id, parent_turn_id, NULL, 0, 0 FROM turn WHERE id = ?
                UNION ALL
                SELECT turn.id, turn.parent_turn_id, turn.state, depth + 1, found + (turn.state IS NOT NULL)
                FROM chain JOIN turn ON turn.id = chain.parent WHERE found < ?
            )
            SELECT state FROM chain WHERE state IS NOT NULL ORDER BY depth DESC
        """
        if (live := self._live.get(turn_id)) and live.record.parent_turn_id is None:
            return []
        rows = await self._read(lambda connection: connection.execute(query, (turn_id, limit)).fetchall())
        return [state for row in rows if (state := reading.state_from(row[0]))]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        query = "SELECT state FROM turn WHERE id = ?"
        row = await self._read(lambda connection: connection.execute(query, (turn_id,)).fetchone())
        if row is None:
            raise TurnNotFoundError(turn_id)
        return reading.state_from(row[0])

    async def tokens_used(self, principal: str, day: int) -> int:
        query = "SELECT tokens FROM spending WHERE principal = ? AND day = ?"
        row = await self._read(lambda connection: connection.execute(query, (principal, day)).fetchone())
        return row[0] if row else 0
