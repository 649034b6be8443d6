"""Turns that are looked up, listed and erased, in both databases."""

from turnwire.core.contracts.stores import JournalEntry, Seal, SqlConnection, TurnFilter
from turnwire.core.errors import SessionBusyError, TurnNotFoundError
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.stores.blobs import release_blobs
from turnwire.stores.database import StorePart
from turnwire.stores.lines import decode_seal, from_entry_lines, state_from, unseal
from turnwire.stores.rows import RECORD, TURN, comparable, folded, record_from

_FIND = f"SELECT {RECORD} FROM {TURN} WHERE t.principal = $1 AND (t.id = $2 OR t.external_id = $2)"
# Ids grow with time, so the position of a deleted turn can still be found.
_NEXT = f"""
    SELECT {RECORD} FROM {TURN} WHERE t.session_id = $1
    AND t.number > coalesce((SELECT number FROM turnwire.turn WHERE id = $2),
        (SELECT max(number) FROM turnwire.turn WHERE session_id = $1 AND id < $2), 0)
    ORDER BY t.number LIMIT 1
"""
_HISTORY = """
    WITH RECURSIVE chain (id, parent, state, depth, found) AS (
        SELECT id, parent_turn_id, CAST(NULL AS bytea), 0, 0 FROM turnwire.turn WHERE id = $1
        UNION ALL
        SELECT t.id, t.parent_turn_id, t.state, depth + 1, found + CASE WHEN t.state IS NULL THEN 0 ELSE 1 END
        FROM chain JOIN turnwire.turn t ON t.id = chain.parent WHERE found < $2
    )
    SELECT state FROM chain WHERE state IS NOT NULL ORDER BY depth DESC
"""
_SEAL = "SELECT s.seal FROM turnwire.turn t LEFT JOIN turnwire.sealed_log s ON s.turn = t.number WHERE t.id = $1"
# Sealing moves the entries from one table to the other in one step, so they are read in one.
_JOURNAL = """
    SELECT s.calls, c.body FROM turnwire.turn t LEFT JOIN turnwire.sealed_log s ON s.turn = t.number
    LEFT JOIN turnwire.call c ON c.turn = t.number WHERE t.id = $1 ORDER BY c.id
"""


class StoredTurns(StorePart):
    """The part of `TurnStore` and `LogStore` that is the same for both databases."""

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        row = await self._database.read(lambda connection: connection.fetchrow(_FIND, principal, comparable(turn_id)))
        if row is None:
            raise TurnNotFoundError(turn_id)
        return self._database.current(record_from(row))

    async def list_turns(
        self, principal: str, *, session_id: str | None = None, limit: int = 50, where: TurnFilter | None = None
    ) -> list[TurnRecord]:
        where = where or TurnFilter()
        conditions, values = ["t.principal = $2"], list[object]([limit, principal])
        for condition, value in (
            ("t.session_id = ${}", None if session_id is None else comparable(session_id)),
            ("t.agent = ${}", None if where.agent is None else comparable(where.agent)),
            ("coalesce(t.outcome, h.phase) = ${}", where.status),
            (f"{self._database.position_in}(t.folded_message, ${{}}) > 0", folded(where.search or "") or None),
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
        rows = await self._database.read(
            lambda connection: connection.fetch(query, *values), searches=bool(where.search)
        )
        turns = [self._database.current(record_from(row)) for row in rows]
        return turns if where.after is not None else turns[::-1]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        values = (comparable(session_id), after_turn_id)
        row = await self._database.read(lambda connection: connection.fetchrow(_NEXT, *values))
        return None if row is None else self._database.current(record_from(row))

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        rows = await self._database.read(lambda connection: connection.fetch(_HISTORY, turn_id, limit))
        return [state for row in rows if (state := state_from(row[0]))]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        query = "SELECT state FROM turnwire.turn WHERE id = $1"
        row = await self._database.read(lambda connection: connection.fetchrow(query, turn_id))
        if row is None:
            raise TurnNotFoundError(turn_id)
        return state_from(row[0])

    async def tokens_used(self, principal: str, day: int) -> int:
        query = "SELECT tokens FROM turnwire.spending WHERE principal = $1 AND day = $2"
        return await self._database.read(lambda connection: connection.fetchval(query, principal, day)) or 0

    async def journal(self, turn_id: str) -> list[JournalEntry]:
        rows = await self._database.read(lambda connection: connection.fetch(_JOURNAL, turn_id))
        if not rows:
            raise TurnNotFoundError(turn_id)
        sealed = rows[0][0]
        lines = unseal(sealed) if sealed else [row[1] for row in rows if row[1] is not None]
        return from_entry_lines(b"\n".join(lines))

    async def seal(self, turn_id: str) -> Seal | None:
        row = await self._database.read(lambda connection: connection.fetchrow(_SEAL, comparable(turn_id)))
        if row is None:
            raise TurnNotFoundError(turn_id)
        return decode_seal(row[0])

    async def ended_turns(self, after_turn_id: str, limit: int) -> list[TurnRecord]:
        query = f"SELECT {RECORD} FROM {TURN} WHERE t.id > $1 AND t.outcome IS NOT NULL ORDER BY t.id LIMIT $2"
        values = (comparable(after_turn_id), limit)
        return [
            record_from(row) for row in await self._database.read(lambda connection: connection.fetch(query, *values))
        ]

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        async def delete(connection: SqlConnection, is_retry: bool) -> TurnRecord | None:
            row = await connection.fetchrow(_FIND, principal, comparable(turn_id))
            if row is None:
                if is_retry:
                    return None  # The first attempt deleted it.
                raise TurnNotFoundError(turn_id)
            record = record_from(row)
            if record.phase != "ended":
                raise SessionBusyError(record.session_id, 1)
            await release_blobs(connection, record)
            await self._database.erase_turns(connection, "id", record.id)
            query = "UPDATE turnwire.turn SET parent_turn_id = $1 WHERE session_id = $2 AND parent_turn_id = $3"
            await connection.execute(query, record.parent_turn_id, record.session_id, record.id)
            return record

        if (deleted := await self._database.write(delete, lock=principal, erases=True)) is not None:
            self._forget_turn(deleted)

    def _forget_turn(self, record: TurnRecord) -> None:
        """Drop what this process keeps of a turn that was erased."""
