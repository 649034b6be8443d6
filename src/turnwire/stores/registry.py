"""API keys, annotations and the outbox, in both databases."""

from msgspec.structs import asdict, astuple

from turnwire.core.contracts.stores import KEYS, Annotation, ApiKey, Notice, SqlConnection
from turnwire.core.errors import KeyNotFoundError, SessionNotFoundError, TurnNotFoundError
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.database import StorePart
from turnwire.stores.rows import RECORD, TURN, annotation_from, comparable, key_from, record_from

_KEY = ", ".join(ApiKey.__struct_fields__)
_ANNOTATION = ", ".join(Annotation.__struct_fields__)


def _insert(table: str, columns: str) -> str:
    values = ", ".join(f"${number}" for number, _ in enumerate(columns.split(","), start=1))
    return f"INSERT INTO turnwire.{table} ({columns}) VALUES ({values})"


class StoredKeys(StorePart):
    """The `KeyStore` of both databases."""

    async def list_keys(self) -> list[ApiKey]:
        query = f"SELECT {_KEY} FROM turnwire.api_key ORDER BY created_at"
        return [key_from(row) for row in await self._database.read(lambda connection: connection.fetch(query))]

    async def add_key(self, key: ApiKey) -> None:
        values = asdict(key) | {"scopes": " ".join(key.scopes)}
        query = f"{_insert('api_key', _KEY)} ON CONFLICT DO NOTHING"
        await self._database.write(lambda connection, _: connection.execute(query, *values.values()))
        self._database.changed(KEYS)

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        query = f"UPDATE turnwire.api_key SET revoked_at = coalesce(revoked_at, $2) WHERE id = $1 RETURNING {_KEY}"
        row = await self._database.write(lambda connection, _: connection.fetchrow(query, comparable(key_id), at))
        if row is None:
            raise KeyNotFoundError(key_id)
        self._database.changed(KEYS)
        return key_from(row)


class StoredAnnotations(StorePart):
    """The `AnnotationStore` of both databases, which erase annotations with their sessions and turns."""

    async def annotate(self, annotation: Annotation) -> None:
        async def write(connection: SqlConnection, is_retry: bool) -> None:
            # With the principal's lock, a session or turn that is there stays until the end of the transaction.
            for table, subject, error in (
                ("session", annotation.session_id, SessionNotFoundError),
                ("turn", annotation.turn_id, TurnNotFoundError),
            ):
                query = f"SELECT EXISTS (SELECT 1 FROM turnwire.{table} WHERE id = $1 AND principal = $2)"
                if subject and not await connection.fetchval(query, comparable(subject), annotation.principal):
                    raise error(subject)
            replaced = ", ".join(f"{name} = excluded.{name}" for name in Annotation.__struct_fields__)
            query = f"{_insert('annotation', _ANNOTATION)} ON CONFLICT (kind, key) DO UPDATE SET {replaced}"
            await connection.execute(query, *astuple(annotation))

        await self._database.write(write, lock=annotation.principal, adds=True)

    async def find_annotation(self, kind: str, key: str) -> Annotation | None:
        query = f"SELECT {_ANNOTATION} FROM turnwire.annotation WHERE kind = $1 AND key = $2"
        row = await self._database.read(lambda connection: connection.fetchrow(query, kind, comparable(key)))
        return annotation_from(row) if row else None

    async def list_annotations(
        self,
        kind: str,
        principal: str | None,
        *,
        session_id: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Annotation]:
        where = "kind = $2"
        values: list[object] = [limit, kind]
        for condition, value in (("principal =", principal), ("session_id =", session_id), ("key <", before)):
            if value is not None:
                values.append(comparable(value))
                where += f" AND {condition} ${len(values)}"
        query = f"SELECT {_ANNOTATION} FROM turnwire.annotation WHERE {where} ORDER BY key DESC LIMIT $1"
        rows = await self._database.read(lambda connection: connection.fetch(query, *values))
        return [annotation_from(row) for row in rows]

    async def remove_annotations(
        self, kind: str, principal: str, *, key: str | None = None, session_id: str | None = None
    ) -> int:
        query = (
            "DELETE FROM turnwire.annotation WHERE kind = $1 AND principal = $2 AND (key = $3 OR session_id = $4)"
            " RETURNING key"
        )
        values = (kind, principal, key, session_id)
        return len(await self._database.write(lambda connection, _: connection.fetch(query, *values)))


class StoredNotices(StorePart):
    """The `Outbox` of both databases."""

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        query = "SELECT EXISTS (SELECT 1 FROM turnwire.outbox WHERE due_at <= $1)"
        if not await self._database.read(lambda connection: connection.fetchval(query, now)):
            return []  # The usual case, in which nothing is written.

        async def take(connection: SqlConnection, is_retry: bool) -> list[tuple[TurnRecord, int]]:
            query = f"""
                UPDATE turnwire.outbox SET due_at = $2 WHERE turn_id IN (
                    SELECT turn_id FROM turnwire.outbox WHERE due_at <= $1 ORDER BY due_at, turn_id LIMIT $3
                    {self._database.row_lock("FOR UPDATE SKIP LOCKED")}
                ) RETURNING turn_id, attempts
            """
            taken: list[tuple[TurnRecord, int]] = []
            for turn_id, attempts in sorted(await connection.fetch(query, now, until, limit), key=lambda row: row[0]):
                row = await connection.fetchrow(f"SELECT {RECORD} FROM {TURN} WHERE t.id = $1", turn_id)
                taken.append((record_from(row), attempts))
            return taken

        # `current` only now: the commit that has ended a turn may not be known in this process before.
        return [
            Notice(self._database.current(record), attempts, until)
            for record, attempts in await self._database.write(take)
        ]

    async def reschedule(self, notice: Notice, due_at: int | None) -> None:
        change, values = "DELETE FROM turnwire.outbox", [notice.record.id, notice.taken_until]
        if due_at is not None:
            change, values = "UPDATE turnwire.outbox SET due_at = $3, attempts = attempts + 1", [*values, due_at]
        query = f"{change} WHERE turn_id = $1 AND due_at = $2"
        await self._database.write(lambda connection, _: connection.execute(query, *values))
