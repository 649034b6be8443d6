"""Annotations: one table. The database erases them with their sessions and turns."""

from typing import Any

from turnwire.core.contracts import Annotation, AnnotationKind
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.stores.postgres.connections import Connections, DatabaseConnection, Row
from turnwire.stores.postgres.rows import comparable
from turnwire.stores.postgres.schema import lock_principal

_COLUMNS = ", ".join(Annotation.__struct_fields__)
_MARKS = ", ".join(f"${number}" for number, _ in enumerate(Annotation.__struct_fields__, start=1))
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in Annotation.__struct_fields__)
INSERT = f"INSERT INTO turnwire.annotation ({_COLUMNS}) VALUES ({_MARKS}) ON CONFLICT (kind, key)"


class PostgresAnnotations:
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
                await connection.execute(f"{INSERT} DO UPDATE SET {_REPLACED}", *column_values(annotation))

        await self._connections.run(call)

    async def find_annotation(self, kind: AnnotationKind, key: str) -> Annotation | None:
        query = f"SELECT {_COLUMNS} FROM turnwire.annotation WHERE kind = $1 AND key = $2"
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
        query = f"SELECT {_COLUMNS} FROM turnwire.annotation WHERE {where} ORDER BY key DESC LIMIT $1"
        return [_annotation_from(row) for row in await self._connections.fetch(query, *values)]

    async def remove_annotations(
        self, kind: AnnotationKind, principal: str, *, key: str | None = None, session_id: str | None = None
    ) -> int:
        query = (
            "DELETE FROM turnwire.annotation WHERE kind = $1 AND principal = $2 AND (key = $3 OR session_id = $4)"
            " RETURNING key"
        )
        return len(await self._connections.fetch(query, kind, principal, key, session_id))


def column_values(annotation: Annotation) -> list[object]:
    """Return the values of a row, for `INSERT`."""
    return [getattr(annotation, name) for name in Annotation.__struct_fields__]


def _annotation_from(row: Row) -> Annotation:
    values: dict[str, Any] = dict(row)
    return Annotation(**values)
