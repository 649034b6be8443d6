"""Sessions, API keys, annotations and the outbox: plain tables."""

from typing import Any

from turnwire.core.contracts.stores import KEYS, Annotation, AnnotationKind, ApiKey, Notice
from turnwire.core.errors import KeyNotFoundError, SessionBusyError, SessionNotFoundError, TurnNotFoundError
from turnwire.core.log.turns import Session, new_session
from turnwire.stores.postgres.connections import Connections, DatabaseConnection, Row
from turnwire.stores.postgres.maintenance import erase_turns
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.rows import RECORD, comparable, folded, record_from
from turnwire.stores.postgres.schema import lock_principal

_SESSION = """
    s.id, s.principal, s.created_at, s.updated_at, s.external_id, s.title,
    (SELECT count(*) FROM turnwire.turn t WHERE t.session_id = s.id) AS turn_count
"""
_KEY = "id, digest, principal, scopes, created_at, expires_at, revoked_at"
_ANNOTATION = ", ".join(Annotation.__struct_fields__)
_MARKS = ", ".join(f"${number}" for number, _ in enumerate(Annotation.__struct_fields__, start=1))
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in Annotation.__struct_fields__)
INSERT_ANNOTATION = f"INSERT INTO turnwire.annotation ({_ANNOTATION}) VALUES ({_MARKS}) ON CONFLICT (kind, key)"


class PostgresRegistry:
    def __init__(self, connections: Connections, notifier: CommitNotifier) -> None:
        self._connections = connections
        self._notifier = notifier

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        session = new_session(principal, external_id, title)

        async def call(connection: DatabaseConnection, is_retry: bool) -> tuple[Session, bool]:
            async with connection.transaction():
                await lock_principal(connection, principal)
                # The first attempt may have created it.
                existing = await _find(connection, principal, session.id if external_id is None else external_id)
                if existing is not None:
                    return existing, existing.id == session.id
                await insert_session(connection, session)
                return session, True

        return await self._connections.run(call)

    async def find_session(self, principal: str, session_id: str) -> Session:
        session = await self._connections.run(lambda connection, _: _find(connection, principal, session_id))
        if session is None:
            raise SessionNotFoundError(session_id)
        return session

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
            term = f"${len(values)}"
            where += (
                f" AND (strpos(s.folded_title, {term}) > 0 OR EXISTS (SELECT 1 FROM turnwire.turn t WHERE"
                f" t.session_id = s.id"
                f" AND (strpos(t.folded_message, {term}) > 0 OR strpos(t.folded_answer, {term}) > 0)))"
            )
        query = (
            f"SELECT {_SESSION} FROM turnwire.session s WHERE {where} ORDER BY s.updated_at DESC, s.id DESC LIMIT $2"
        )
        rows = await self._connections.fetch(query, *values)
        return [_session_from(row) for row in rows]

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        async def call(connection: DatabaseConnection, is_retry: bool) -> Session:
            async with connection.transaction():
                await lock_principal(connection, principal)
                session = await _find(connection, principal, session_id)
                if session is None:
                    raise SessionNotFoundError(session_id)
                query = "UPDATE turnwire.session SET title = $2, folded_title = $3 WHERE id = $1"
                await connection.execute(query, session.id, title, folded(title))
                return await _find(connection, principal, session.id) or session

        return await self._connections.run(call)

    async def delete_session(self, principal: str, session_id: str) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> str | None:
            async with connection.transaction():
                await lock_principal(connection, principal)
                session = await _find(connection, principal, session_id)
                if session is None:
                    if is_retry:
                        return None  # The first attempt deleted it.
                    raise SessionNotFoundError(session_id)
                query = "SELECT count(*) FROM turnwire.head WHERE session_id = $1"
                if unfinished := await connection.fetchval(query, session.id):
                    raise SessionBusyError(session.id, unfinished)
                await erase_turns(connection, "session_id", session.id)
                await connection.execute("DELETE FROM turnwire.session WHERE id = $1", session.id)
                return session.id

        if (deleted := await self._connections.run(call)) is not None:
            self._notifier.changed(deleted)

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
        rows = await self._connections.fetch(query, now, until, limit)
        return [Notice(record_from(row), row["attempts"], until) for row in rows]

    async def put_off(self, turn_id: str, due_at: int, taken_until: int | None = None) -> None:
        query = """UPDATE turnwire.outbox SET due_at = $2, attempts = attempts + 1
            WHERE turn_id = $1 AND due_at = coalesce($3, due_at)"""
        await self._connections.execute(query, turn_id, due_at, taken_until)

    async def dismiss(self, turn_id: str, taken_until: int | None = None) -> None:
        query = "DELETE FROM turnwire.outbox WHERE turn_id = $1 AND due_at = coalesce($2, due_at)"
        await self._connections.execute(query, turn_id, taken_until)

    async def list_keys(self) -> list[ApiKey]:
        query = f"SELECT {_KEY} FROM turnwire.api_key ORDER BY created_at"
        return [_key_from(row) for row in await self._connections.fetch(query)]

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
        await self._connections.execute(query, *values)
        self._notifier.changed(KEYS)

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        query = f"UPDATE turnwire.api_key SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 RETURNING {_KEY}"
        row = await self._connections.fetchrow(query, comparable(key_id), at)
        if row is None:
            raise KeyNotFoundError(key_id)
        self._notifier.changed(KEYS)
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


def _session_from(row: Row) -> Session:
    return Session(**{name: row[name] for name in Session.__struct_fields__})


def _key_from(row: Row) -> ApiKey:
    values: dict[str, Any] = dict(row)
    values["scopes"] = tuple(row["scopes"].split())
    return ApiKey(**values)


class PostgresAnnotations:
    """Annotations, which the database erases with their sessions and turns."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def annotate(self, annotation: Annotation) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            async with connection.transaction():
                # A session or turn that is there stays until the end of the transaction.
                await lock_principal(connection, annotation.principal)
                for table, subject, error in (
                    ("session", annotation.session_id, SessionNotFoundError),
                    ("turn", annotation.turn_id, TurnNotFoundError),
                ):
                    query = f"SELECT EXISTS (SELECT 1 FROM turnwire.{table} WHERE id = $1 AND principal = $2)"
                    if subject and not await connection.fetchval(query, comparable(subject), annotation.principal):
                        raise error(subject)
                await connection.execute(
                    f"{INSERT_ANNOTATION} DO UPDATE SET {_REPLACED}", *annotation_values(annotation)
                )

        await self._connections.run(call)

    async def find_annotation(self, kind: AnnotationKind, key: str) -> Annotation | None:
        query = f"SELECT {_ANNOTATION} FROM turnwire.annotation WHERE kind = $1 AND key = $2"
        row = await self._connections.fetchrow(query, kind, comparable(key))
        return _annotation_from(row) if row else None

    async def list_annotations(
        self,
        kind: AnnotationKind,
        principal: str | None,
        *,
        session_id: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Annotation]:
        where = "kind = $2"
        values: list[Any] = [limit, kind]
        for condition, value in (("principal =", principal), ("session_id =", session_id), ("key <", before)):
            if value is not None:
                values.append(comparable(value))
                where += f" AND {condition} ${len(values)}"
        query = f"SELECT {_ANNOTATION} FROM turnwire.annotation WHERE {where} ORDER BY key DESC LIMIT $1"
        return [_annotation_from(row) for row in await self._connections.fetch(query, *values)]

    async def remove_annotations(
        self, kind: AnnotationKind, principal: str, *, key: str | None = None, session_id: str | None = None
    ) -> int:
        query = (
            "DELETE FROM turnwire.annotation WHERE kind = $1 AND principal = $2 AND (key = $3 OR session_id = $4)"
            " RETURNING key"
        )
        return len(await self._connections.fetch(query, kind, principal, key, session_id))


def annotation_values(annotation: Annotation) -> list[object]:
    """Return the values of a row, for `INSERT_ANNOTATION`."""
    return [getattr(annotation, name) for name in Annotation.__struct_fields__]


def _annotation_from(row: Row) -> Annotation:
    values: dict[str, Any] = dict(row)
    return Annotation(**values)
