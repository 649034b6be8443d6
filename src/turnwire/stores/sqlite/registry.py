"""Sessions, API keys, annotations and the outbox: tables read on the readers' threads, written through the writer."""

import sqlite3
from typing import Any

from turnwire.core.contracts.stores import Annotation, AnnotationKind, ApiKey, Notice
from turnwire.core.errors import KeyNotFoundError, SessionBusyError, SessionNotFoundError, TurnNotFoundError
from turnwire.core.log.turns import Session, new_session
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.sqlite.live_turn import LiveTurns
from turnwire.stores.sqlite.maintenance import erase_turns
from turnwire.stores.sqlite.rows import (
    KEY_COLUMNS,
    SESSION_COLUMNS,
    TURN_COLUMNS,
    key_from,
    session_from,
    turn_from,
)
from turnwire.stores.sqlite.schema import mentions
from turnwire.stores.sqlite.writer import SqliteWriter

_NUMBER = "(SELECT number FROM turn WHERE id = ?)"
_TAKEN = "due_at = coalesce(?, due_at)"
ANNOTATION_COLUMNS = ", ".join(Annotation.__struct_fields__)
_DUE = "FROM outbox JOIN turn ON number = turn WHERE due_at <= ?"


class SqliteRegistry:
    def __init__(
        self, readers: SqliteThreads, searchers: SqliteThreads, writer: SqliteWriter, turns: LiveTurns
    ) -> None:
        self._readers = readers
        self._searchers = searchers
        self._writer = writer
        self._turns = turns

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        await self._writer.refuse_if_full()
        session = new_session(principal, external_id, title)
        return await self._writer.write(lambda connection: _ensure(connection, session))

    async def find_session(self, principal: str, session_id: str) -> Session:
        return await self._readers.run(lambda connection: _find(connection, principal, session_id))

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        where = "principal = ?"
        values: list[Any] = [principal]
        if search:
            in_title, titles = mentions("title", search)
            in_message, messages = mentions("message", search)
            in_answer, answers = mentions("answer", search)
            in_turns = f"SELECT 1 FROM turn WHERE session_id = session.id AND ({in_message} OR {in_answer})"
            where += f" AND ({in_title} OR EXISTS ({in_turns}))"
            values += [*titles, *messages, *answers]

        def run(connection: sqlite3.Connection) -> list[Any]:
            last = _find(connection, principal, before) if before is not None else None
            page = " AND (updated_at, id) < (?, ?)" if last else ""
            query = (
                f"SELECT {SESSION_COLUMNS} FROM session WHERE {where}{page} ORDER BY updated_at DESC, id DESC LIMIT ?"
            )
            cursor = [last.updated_at, last.id] if last else []
            return connection.execute(query, (*values, *cursor, limit)).fetchall()

        threads = self._searchers if search else self._readers
        return [session_from(row) for row in await threads.run(run)]

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        def run(connection: sqlite3.Connection) -> Session:
            session = _find(connection, principal, session_id)
            connection.execute("UPDATE session SET title = ? WHERE id = ?", (title, session.id))
            return _find(connection, principal, session.id)

        return await self._writer.write(run)

    async def delete_session(self, principal: str, session_id: str) -> None:
        def run(connection: sqlite3.Connection) -> str:
            session = _find(connection, principal, session_id)
            query = "SELECT count(*) FROM turn WHERE session_id = ? AND phase <> 'ended'"
            unfinished = connection.execute(query, (session.id,)).fetchone()[0]
            if unfinished:
                raise SessionBusyError(session.id, unfinished)
            erase_turns(connection, "session_id", session.id)
            connection.execute("DELETE FROM annotation WHERE session_id = ?", (session.id,))
            connection.execute("DELETE FROM blob WHERE session_id = ?", (session.id,))
            connection.execute("DELETE FROM session WHERE id = ?", (session.id,))
            return session.id

        self._turns.forget_session(await self._writer.write(run, erases=True))

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        query = f"SELECT EXISTS (SELECT 1 {_DUE})"
        if not (await self._readers.run(lambda connection: connection.execute(query, (now,)).fetchone()))[0]:
            return []  # The usual case, in which nothing is written.
        return await self._writer.write(lambda connection: _take_due(connection, now, until, limit))

    async def put_off(self, turn_id: str, due_at: int, taken_until: int | None = None) -> None:
        query = f"UPDATE outbox SET due_at = ?, attempts = attempts + 1 WHERE turn = {_NUMBER} AND {_TAKEN}"
        await self._writer.write(lambda connection: connection.execute(query, (due_at, turn_id, taken_until)))

    async def dismiss(self, turn_id: str, taken_until: int | None = None) -> None:
        query = f"DELETE FROM outbox WHERE turn = {_NUMBER} AND {_TAKEN}"
        await self._writer.write(lambda connection: connection.execute(query, (turn_id, taken_until)))

    async def list_keys(self) -> list[ApiKey]:
        query = f"SELECT {KEY_COLUMNS} FROM api_key ORDER BY created_at"
        return [
            key_from(row) for row in await self._readers.run(lambda connection: connection.execute(query).fetchall())
        ]

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
        query = f"INSERT INTO api_key ({KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
        await self._writer.write(lambda connection: connection.execute(query, values))

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        def run(connection: sqlite3.Connection) -> ApiKey:
            connection.execute("UPDATE api_key SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", (at, key_id))
            row = connection.execute(f"SELECT {KEY_COLUMNS} FROM api_key WHERE id = ?", (key_id,)).fetchone()
            if row is None:
                raise KeyNotFoundError(key_id)
            return key_from(row)

        return await self._writer.write(run)


def _take_due(connection: sqlite3.Connection, now: int, until: int, limit: int) -> list[Notice]:
    query = f"SELECT {TURN_COLUMNS}, number, attempts {_DUE} ORDER BY due_at, number LIMIT ?"
    rows = connection.execute(query, (now, limit)).fetchall()
    connection.executemany("UPDATE outbox SET due_at = ? WHERE turn = ?", [(until, row[-2]) for row in rows])
    return [Notice(turn_from(row[:-2]), row[-1], until) for row in rows]


def _find(connection: sqlite3.Connection, principal: str, session_id: str) -> Session:
    row = connection.execute(
        f"SELECT {SESSION_COLUMNS} FROM session WHERE (id = ? OR external_id = ?) AND principal = ?",
        (session_id, session_id, principal),
    ).fetchone()
    if row is None:
        raise SessionNotFoundError(session_id)
    return session_from(row)


def _ensure(connection: sqlite3.Connection, session: Session) -> tuple[Session, bool]:
    if session.external_id is not None:
        try:
            return _find(connection, session.principal, session.external_id), False
        except SessionNotFoundError:
            pass
    insert_session(connection, session)
    return session, True


def insert_session(connection: sqlite3.Connection, session: Session) -> None:
    connection.execute(
        "INSERT INTO session (id, principal, external_id, title, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)",
        (
            session.id,
            session.principal,
            session.external_id,
            session.title,
            session.created_at,
            session.updated_at,
        ),
    )


class SqliteAnnotations:
    def __init__(self, readers: SqliteThreads, writer: SqliteWriter) -> None:
        self._readers = readers
        self._writer = writer

    async def annotate(self, annotation: Annotation) -> None:
        await self._writer.refuse_if_full()
        await self._writer.write(lambda connection: _annotate(connection, annotation))

    async def find_annotation(self, kind: AnnotationKind, key: str) -> Annotation | None:
        rows = await self._select("kind = ? AND key = ?", [kind, key])
        return annotation_from(rows[0]) if rows else None

    async def list_annotations(
        self,
        kind: AnnotationKind,
        principal: str | None,
        *,
        session_id: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Annotation]:
        where, values = "kind = ?", [kind]
        for condition, value in (("principal = ?", principal), ("session_id = ?", session_id), ("key < ?", before)):
            if value is not None:
                where += f" AND {condition}"
                values.append(value)
        rows = await self._select(f"{where} ORDER BY key DESC LIMIT ?", [*values, limit])
        return [annotation_from(row) for row in rows]

    async def remove_annotations(
        self, kind: AnnotationKind, principal: str, *, key: str | None = None, session_id: str | None = None
    ) -> int:
        query = "DELETE FROM annotation WHERE kind = ? AND principal = ? AND (key = ? OR session_id = ?)"
        values = (kind, principal, key, session_id)
        return await self._writer.write(lambda connection: connection.execute(query, values).rowcount)

    async def _select(self, where: str, values: list[Any]) -> list[Any]:
        query = f"SELECT {ANNOTATION_COLUMNS} FROM annotation WHERE {where}"
        return await self._readers.run(lambda connection: connection.execute(query, values).fetchall())


def annotation_from(row: Any) -> Annotation:
    return Annotation(**dict(zip(Annotation.__struct_fields__, row, strict=True)))


def _annotate(connection: sqlite3.Connection, annotation: Annotation) -> None:
    for table, subject, error in (
        ("session", annotation.session_id, SessionNotFoundError),
        ("turn", annotation.turn_id, TurnNotFoundError),
    ):
        query = f"SELECT 1 FROM {table} WHERE id = ? AND principal = ?"
        if subject and connection.execute(query, (subject, annotation.principal)).fetchone() is None:
            raise error(subject)
    values = [getattr(annotation, name) for name in Annotation.__struct_fields__]
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT OR REPLACE INTO annotation ({ANNOTATION_COLUMNS}) VALUES ({marks})", values)
