"""Annotations: one table, read on the readers' threads, written through the writer."""

import sqlite3
from typing import Any

from turnwire.core.contracts import Annotation, AnnotationKind
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.sqlite.writer import SqliteWriter

ANNOTATION_COLUMNS = ", ".join(Annotation.__struct_fields__)


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
