"""Files of sessions: one table of bytes, and one of the turns that need them."""

from collections.abc import Collection, Sequence

from turnwire.core.errors import FilesFullError, SessionFileNotFoundError, SessionNotFoundError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import Blob
from turnwire.stores.postgres.connections import Connections, DatabaseConnection
from turnwire.stores.postgres.rows import comparable
from turnwire.stores.postgres.schema import lock_principal

_EXPIRE_STEP = 20
_INSERT = """
    INSERT INTO turnwire.blob (session_id, digest, media_type, name, size, used_at, body)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (session_id, digest) DO UPDATE SET used_at = excluded.used_at
"""
_RELEASE = """
    DELETE FROM turnwire.blob b USING turnwire.blob_use u, turnwire.turn t
    WHERE t.id = $1 AND u.turn_id = t.id AND b.session_id = t.session_id AND b.digest = u.digest AND NOT EXISTS (
        SELECT 1 FROM turnwire.blob_use o JOIN turnwire.turn other ON other.id = o.turn_id
        WHERE o.digest = b.digest AND other.session_id = t.session_id AND other.id <> t.id)
"""
_EXPIRE = """
    DELETE FROM turnwire.blob WHERE number IN (
        SELECT b.number FROM turnwire.blob b WHERE b.used_at < $1
        AND NOT EXISTS (SELECT 1 FROM turnwire.turn t JOIN turnwire.blob_use u ON u.turn_id = t.id
            WHERE t.session_id = b.session_id AND t.first_kept = 1 AND u.digest = b.digest)
        LIMIT $2 FOR UPDATE SKIP LOCKED)
    AND used_at < $1 RETURNING number
"""


class PostgresBlobs:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def put_blob(self, principal: str, session_id: str, blob: Blob, *, max_bytes: int) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            async with connection.transaction():
                await lock_principal(connection, principal)
                query = "SELECT EXISTS (SELECT 1 FROM turnwire.session WHERE id = $1 AND principal = $2)"
                if not await connection.fetchval(query, comparable(session_id), principal):
                    raise SessionNotFoundError(session_id)
                await add_blobs(connection, session_id, [blob], max_bytes)

        await self._connections.run(call)

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        query = "SELECT digest, media_type, body, name FROM turnwire.blob WHERE session_id = $1 AND digest = $2"
        row = await self._connections.fetchrow(query, comparable(session_id), comparable(digest))
        if row is None:
            return None
        return Blob(digest=row["digest"], media_type=row["media_type"], body=row["body"], name=row["name"])

    async def list_blobs(self, session_id: str) -> list[AttachedFile]:
        query = "SELECT media_type, name, size, digest FROM turnwire.blob WHERE session_id = $1 ORDER BY number"
        rows = await self._connections.fetch(query, comparable(session_id))
        return [AttachedFile(media_type=row[0], name=row[1], size=row[2], digest=row[3]) for row in rows]


async def add_blobs(connection: DatabaseConnection, session_id: str, blobs: Sequence[Blob], max_bytes: int) -> None:
    """Store the files that the session does not have. Raises FilesFullError."""
    now = now_ms()
    for blob in blobs:
        values = (session_id, blob.digest, blob.media_type, blob.name, len(blob.body), now, blob.body)
        await connection.execute(_INSERT, *values)
    total = "SELECT coalesce(sum(size), 0) FROM turnwire.blob WHERE session_id = $1"
    if blobs and await connection.fetchval(total, session_id) > max_bytes:
        raise FilesFullError(max_bytes)


async def use_blobs(connection: DatabaseConnection, session_id: str, turn_id: str, digests: Collection[str]) -> None:
    """Record that a turn needs these files. Raises SessionFileNotFoundError."""
    for digest in digests:
        query = "UPDATE turnwire.blob SET used_at = $1 WHERE session_id = $2 AND digest = $3 RETURNING number"
        if await connection.fetchval(query, now_ms(), session_id, comparable(digest)) is None:
            raise SessionFileNotFoundError(digest)
        query = "INSERT INTO turnwire.blob_use (turn_id, digest) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await connection.execute(query, turn_id, digest)


async def release_blobs(connection: DatabaseConnection, turn_id: str) -> None:
    """Delete the files that this turn needs and no other one."""
    await connection.execute(_RELEASE, turn_id)


async def expire_blobs(connection: DatabaseConnection, before: int) -> bool:
    """Delete some files that were not used since, and that no turn with a whole log needs; True if more may be."""
    return len(await connection.fetch(_EXPIRE, before, _EXPIRE_STEP)) == _EXPIRE_STEP
