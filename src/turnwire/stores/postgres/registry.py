"""Sessions and API keys: plain tables, and what is erased with a session or a turn."""

from typing import Any

from turnwire.core.contracts import KEYS, ApiKey, Notice
from turnwire.core.errors import KeyNotFoundError, SessionBusyError, SessionNotFoundError, TurnNotFoundError
from turnwire.core.turns import Session, new_session
from turnwire.stores.postgres.connections import DatabaseConnection, Row
from turnwire.stores.postgres.parts import StorePart, lock_principal
from turnwire.stores.postgres.rows import RECORD, TURN, comparable, folded, record_from

_SESSION = """
    s.id, s.principal, s.created_at, s.updated_at, s.external_id, s.title,
    (SELECT count(*) FROM turnwire.turn t WHERE t.session_id = s.id) AS turn_count
"""
_KEY = "id, digest, principal, scopes, created_at, expires_at, revoked_at"


class PostgresRegistry(StorePart):
    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        session = new_session(principal, external_id, title)

        async def call(connection: DatabaseConnection, again: bool) -> tuple[Session, bool]:
            async with connection.transaction():
                await lock_principal(connection, principal)
                known = await _find(connection, principal, session.id if external_id is None else external_id)
                if known is not None:
                    return known, known.id == session.id
                await insert_session(connection, session)
                return session, True

        return await self._run(call)

    async def find_session(self, principal: str, session_id: str) -> Session:
        found = await self._run(lambda connection, _: _find(connection, principal, session_id))
        if found is None:
            raise SessionNotFoundError(session_id)
        return found

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        values: list[Any] = [principal, limit]
        where = "s.principal = $1"
        if before is not None:
            last = await self.find_session(principal, before)
            values += [last.updated_at, last.id]
            where += " AND (s.updated_at, s.id) < ($3, $4)"
        if search:
            values.append(folded(search))
            at = f"${len(values)}"
            where += (
                f" AND (strpos(s.folded_title, {at}) > 0 OR EXISTS (SELECT 1 FROM turnwire.turn t WHERE"
                f" t.session_id = s.id AND (strpos(t.folded_message, {at}) > 0 OR strpos(t.folded_answer, {at}) > 0)))"
            )
        query = (
            f"SELECT {_SESSION} FROM turnwire.session s WHERE {where} ORDER BY s.updated_at DESC, s.id DESC LIMIT $2"
        )
        rows = await self._run(lambda connection, _: connection.fetch(query, *values))
        return [_session_from(row) for row in rows]

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        async def call(connection: DatabaseConnection, again: bool) -> Session:
            async with connection.transaction():
                await lock_principal(connection, principal)
                session = await _find(connection, principal, session_id)
                if session is None:
                    raise SessionNotFoundError(session_id)
                query = "UPDATE turnwire.session SET title = $2, folded_title = $3 WHERE id = $1"
                await connection.execute(query, session.id, title, folded(title))
                return await _find(connection, principal, session.id) or session

        return await self._run(call)

    async def delete_session(self, principal: str, session_id: str) -> None:
        async def call(connection: DatabaseConnection, again: bool) -> str | None:
            async with connection.transaction():
                await lock_principal(connection, principal)
                session = await _find(connection, principal, session_id)
                if session is None:
                    if again:
                        return None  # The first attempt did it.
                    raise SessionNotFoundError(session_id)
                query = "SELECT count(*) FROM turnwire.head WHERE session_id = $1"
                if unfinished := await connection.fetchval(query, session.id):
                    raise SessionBusyError(session.id, unfinished)
                await _erase_turns(connection, "session_id = $1", session.id)
                await connection.execute("DELETE FROM turnwire.session WHERE id = $1", session.id)
                return session.id

        if (deleted := await self._run(call)) is not None:
            self._hub.happened(deleted)

    async def delete_turn(self, principal: str, turn_id: str) -> None:
        async def call(connection: DatabaseConnection, again: bool) -> None:
            async with connection.transaction():
                await lock_principal(connection, principal)
                query = f"SELECT {RECORD} FROM {TURN} WHERE t.principal = $1 AND (t.id = $2 OR t.external_id = $2)"
                row = await connection.fetchrow(query, principal, comparable(turn_id))
                if row is None:
                    if again:
                        return
                    raise TurnNotFoundError(turn_id)
                record = record_from(row)
                if record.phase != "ended":
                    raise SessionBusyError(record.session_id, 1)
                await _erase_turns(connection, "id = $1", record.id)
                query = "UPDATE turnwire.turn SET parent_turn_id = $1 WHERE session_id = $2 AND parent_turn_id = $3"
                await connection.execute(query, record.parent_turn_id, record.session_id, record.id)

        await self._run(call)

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        query = f"""
            WITH due AS (
                SELECT turn_id FROM turnwire.outbox WHERE due_at <= $1 ORDER BY due_at, turn_id LIMIT $3
                FOR UPDATE SKIP LOCKED
            ), taken AS (
                UPDATE turnwire.outbox o SET due_at = $2 FROM due WHERE o.turn_id = due.turn_id
                RETURNING o.turn_id, o.attempts
            )
            SELECT {RECORD}, taken.attempts FROM taken JOIN turnwire.turn t ON t.id = taken.turn_id
            LEFT JOIN turnwire.head h ON h.id = t.id ORDER BY t.number
        """
        rows = await self._run(lambda connection, _: connection.fetch(query, now, until, limit))
        return [Notice(record_from(row), row["attempts"]) for row in rows]

    async def put_off(self, turn_id: str, due_at: int) -> None:
        query = "UPDATE turnwire.outbox SET due_at = $2, attempts = attempts + 1 WHERE turn_id = $1"
        await self._run(lambda connection, _: connection.execute(query, turn_id, due_at))

    async def dismiss(self, turn_id: str) -> None:
        query = "DELETE FROM turnwire.outbox WHERE turn_id = $1"
        await self._run(lambda connection, _: connection.execute(query, turn_id))

    async def list_keys(self) -> list[ApiKey]:
        query = f"SELECT {_KEY} FROM turnwire.api_key ORDER BY created_at"
        return [_key_from(row) for row in await self._run(lambda connection, _: connection.fetch(query))]

    async def add_key(self, key: ApiKey) -> None:
        values = (
            key.id,
            key.digest,
            key.principal,
            " ".join(key.scopes),
            key.created_at,
            key.expires_at,
            key.revoked_at,
        )
        query = f"INSERT INTO turnwire.api_key ({_KEY}) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING"
        await self._run(lambda connection, _: connection.execute(query, *values))
        self._hub.happened(KEYS)

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        query = f"UPDATE turnwire.api_key SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 RETURNING {_KEY}"
        row = await self._run(lambda connection, _: connection.fetchrow(query, comparable(key_id), at))
        if row is None:
            raise KeyNotFoundError(key_id)
        self._hub.happened(KEYS)
        return _key_from(row)


async def _find(connection: DatabaseConnection, principal: str, session_id: str) -> Session | None:
    query = (
        f"SELECT {_SESSION} FROM turnwire.session s WHERE s.principal = $1 AND (s.id = $2 OR s.external_id = $2)"
        " ORDER BY s.external_id = $2 DESC NULLS LAST LIMIT 1"
    )
    row = await connection.fetchrow(query, principal, comparable(session_id))
    return _session_from(row) if row else None


async def insert_session(connection: DatabaseConnection, session: Session) -> None:
    await connection.execute(
        "INSERT INTO turnwire.session (id, principal, external_id, title, folded_title, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)",
        session.id,
        session.principal,
        session.external_id,
        session.title,
        None if session.title is None else folded(session.title),
        session.created_at,
        session.updated_at,
    )


async def _erase_turns(connection: DatabaseConnection, where: str, value: str) -> None:
    numbers: list[int] = []
    days: list[int] = []
    for number, day in await connection.fetch(f"DELETE FROM turnwire.turn WHERE {where} RETURNING number, day", value):
        numbers.append(number)
        days.append(day)
    await connection.execute("DELETE FROM turnwire.sealed_log WHERE turn = ANY($1)", numbers)
    # The days are few, and name the partitions to look in.
    await connection.execute("DELETE FROM turnwire.event WHERE day = ANY($1) AND turn = ANY($2)", [*set(days)], numbers)


def _session_from(row: Row) -> Session:
    return Session(**{name: row[name] for name in Session.__struct_fields__})


def _key_from(row: Row) -> ApiKey:
    values: dict[str, Any] = dict(row)
    values["scopes"] = tuple(row["scopes"].split())
    return ApiKey(**values)
