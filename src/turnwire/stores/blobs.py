"""Files of sessions, in both databases: one table of bytes, and one of the turns that need them."""

from collections.abc import Collection, Sequence

from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import FilesFullError, SessionFileNotFoundError, SessionNotFoundError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import Blob
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.database import Database, StorePart
from turnwire.stores.rows import comparable

_EXPIRE_STEP = 20
_INSERT = """
    INSERT INTO turnwire.blob (session_id, digest, media_type, name, size, used_at, body)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (session_id, digest) DO UPDATE SET used_at = excluded.used_at
"""
_RELEASE = """
    DELETE FROM turnwire.blob WHERE session_id = $1
    AND digest IN (SELECT digest FROM turnwire.blob_use WHERE session_id = $1 AND turn_id = $2)
    AND NOT EXISTS (
        SELECT 1 FROM turnwire.blob_use u WHERE u.session_id = $1 AND u.digest = blob.digest AND u.turn_id <> $2)
"""
_EXPIRE = """
    DELETE FROM turnwire.blob WHERE number IN (
        SELECT b.number FROM turnwire.blob b WHERE b.used_at < $1
        AND NOT EXISTS (SELECT 1 FROM turnwire.blob_use u JOIN turnwire.turn t ON t.id = u.turn_id
            WHERE u.session_id = b.session_id AND u.digest = b.digest AND t.first_kept = 1)
        LIMIT $2 {})
    AND used_at < $1 RETURNING number
"""


class StoredBlobs(StorePart):
    """The `BlobStore` of both databases."""

    async def put_blob(self, principal: str, session_id: str, blob: Blob, *, max_bytes: int) -> None:
        async def put(connection: SqlConnection, is_retry: bool) -> None:
            query = "SELECT EXISTS (SELECT 1 FROM turnwire.session WHERE id = $1 AND principal = $2)"
            if not await connection.fetchval(query, comparable(session_id), principal):
                raise SessionNotFoundError(session_id)
            await add_blobs(connection, session_id, [blob], max_bytes)

        await self._database.write(put, lock=principal, adds=True)

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        query = "SELECT digest, media_type, body, name FROM turnwire.blob WHERE session_id = $1 AND digest = $2"
        values = (comparable(session_id), comparable(digest))
        row = await self._database.read(lambda connection: connection.fetchrow(query, *values))
        return Blob(digest=row[0], media_type=row[1], body=row[2], name=row[3]) if row else None

    async def list_blobs(self, session_id: str) -> list[AttachedFile]:
        query = "SELECT media_type, name, size, digest FROM turnwire.blob WHERE session_id = $1 ORDER BY number"
        rows = await self._database.read(lambda connection: connection.fetch(query, comparable(session_id)))
        return [AttachedFile(media_type=row[0], name=row[1], size=row[2], digest=row[3]) for row in rows]


async def add_blobs(connection: SqlConnection, session_id: str, blobs: Sequence[Blob], max_bytes: int) -> None:
    """Store the files that the session does not have. Raises FilesFullError."""
    now = now_ms()
    for blob in blobs:
        values = (session_id, blob.digest, blob.media_type, blob.name, len(blob.body), now, blob.body)
        await connection.execute(_INSERT, *values)
    total = "SELECT coalesce(sum(size), 0) FROM turnwire.blob WHERE session_id = $1"
    if blobs and await connection.fetchval(total, session_id) > max_bytes:
        raise FilesFullError(max_bytes)


async def use_blobs(connection: SqlConnection, session_id: str, turn_id: str, digests: Collection[str]) -> None:
    """Record that a turn needs these files. Raises SessionFileNotFoundError."""
    for digest in digests:
        query = "UPDATE turnwire.blob SET used_at = $1 WHERE session_id = $2 AND digest = $3 RETURNING number"
        if await connection.fetchval(query, now_ms(), session_id, comparable(digest)) is None:
            raise SessionFileNotFoundError(digest)
        await note_use(connection, session_id, turn_id, digest)


async def note_use(connection: SqlConnection, session_id: str, turn_id: str, digest: str) -> None:
    query = "INSERT INTO turnwire.blob_use (session_id, digest, turn_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    await connection.execute(query, session_id, digest, turn_id)


async def release_blobs(connection: SqlConnection, record: TurnRecord) -> None:
    """Delete the files that this turn needs and no other one."""
    await connection.execute(_RELEASE, record.session_id, record.id)


async def expire_blobs(database: Database, before: int) -> None:
    """Delete the files that were not used since, and that no turn with a whole log needs."""
    query = _EXPIRE.format(database.row_lock("FOR UPDATE SKIP LOCKED"))
    is_done = False
    while not is_done:
        rows = await database.write(lambda connection, _: connection.fetch(query, before, _EXPIRE_STEP))
        is_done = len(rows) < _EXPIRE_STEP
