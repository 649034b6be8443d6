"""Files of sessions: one table of bytes, and one of the turns that need them."""

import sqlite3
from collections.abc import Collection, Sequence

from turnwire.core.errors import FilesFullError, SessionFileNotFoundError, SessionNotFoundError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import Blob
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.sqlite.writer import SqliteWriter

_EXPIRE_STEP = 20
_IN_SESSION = "SELECT number FROM turn WHERE session_id = blob.session_id"


class SqliteBlobs:
    def __init__(self, readers: SqliteThreads, writer: SqliteWriter) -> None:
        self._readers = readers
        self._writer = writer

    async def put_blob(self, principal: str, session_id: str, blob: Blob, *, max_bytes: int) -> None:
        def run(connection: sqlite3.Connection) -> None:
            query = "SELECT 1 FROM session WHERE id = ? AND principal = ?"
            if connection.execute(query, (session_id, principal)).fetchone() is None:
                raise SessionNotFoundError(session_id)
            add_blobs(connection, session_id, [blob], max_bytes)

        await self._writer.refuse_if_full()
        await self._writer.write(run)

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        return await self._readers.run(lambda connection: read_blob(connection, session_id, digest))

    async def list_blobs(self, session_id: str) -> list[AttachedFile]:
        return await self._readers.run(lambda connection: list_blobs(connection, session_id))


def read_blob(connection: sqlite3.Connection, session_id: str, digest: str) -> Blob | None:
    query = "SELECT digest, media_type, body, name FROM blob WHERE session_id = ? AND digest = ?"
    row = connection.execute(query, (session_id, digest)).fetchone()
    return Blob(digest=row[0], media_type=row[1], body=row[2], name=row[3]) if row else None


def list_blobs(connection: sqlite3.Connection, session_id: str) -> list[AttachedFile]:
    query = "SELECT media_type, name, size, digest FROM blob WHERE session_id = ? ORDER BY number"
    rows = connection.execute(query, (session_id,)).fetchall()
    return [AttachedFile(media_type=row[0], name=row[1], size=row[2], digest=row[3]) for row in rows]


def add_blobs(connection: sqlite3.Connection, session_id: str, blobs: Sequence[Blob], max_bytes: int) -> None:
    """Store the files that the session does not have. Raises FilesFullError."""
    insert = (
        "INSERT INTO blob (session_id, digest, media_type, name, size, used_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (session_id, digest) DO UPDATE SET used_at = excluded.used_at"
    )
    now = now_ms()
    for blob in blobs:
        values = (session_id, blob.digest, blob.media_type, blob.name, len(blob.body), now, blob.body)
        connection.execute(insert, values)
    total = "SELECT total(size) FROM blob WHERE session_id = ?"
    if blobs and connection.execute(total, (session_id,)).fetchone()[0] > max_bytes:
        raise FilesFullError(max_bytes)


def use_blobs(connection: sqlite3.Connection, session_id: str, turn: int, digests: Collection[str]) -> None:
    """Record that a turn needs these files. Raises SessionFileNotFoundError."""
    for digest in digests:
        query = "UPDATE blob SET used_at = ? WHERE session_id = ? AND digest = ?"
        if connection.execute(query, (now_ms(), session_id, digest)).rowcount == 0:
            raise SessionFileNotFoundError(digest)
        connection.execute("INSERT OR IGNORE INTO blob_use (turn, digest) VALUES (?, ?)", (turn, digest))


def release_blobs(connection: sqlite3.Connection, turn_id: str) -> None:
    """Delete the files that this turn needs and no other one."""
    others = f"SELECT 1 FROM blob_use u WHERE u.digest = blob.digest AND u.turn IN ({_IN_SESSION})"
    connection.execute(
        "DELETE FROM blob WHERE session_id = (SELECT session_id FROM turn WHERE id = ?1) AND digest IN"
        " (SELECT digest FROM blob_use WHERE turn = (SELECT number FROM turn WHERE id = ?1))"
        f" AND NOT EXISTS ({others} AND u.turn <> (SELECT number FROM turn WHERE id = ?1))",
        (turn_id,),
    )


def expire_blobs(connection: sqlite3.Connection, before: int) -> bool:
    """Delete some files that were not used since, and that no turn with a whole log needs; True if more may be."""
    query = (
        "DELETE FROM blob WHERE number IN (SELECT number FROM blob WHERE used_at < ? AND NOT EXISTS"
        " (SELECT 1 FROM turn t JOIN blob_use u ON u.turn = t.number"
        " WHERE t.session_id = blob.session_id AND t.first_kept = 1 AND u.digest = blob.digest) LIMIT ?)"
    )
    return connection.execute(query, (before, _EXPIRE_STEP)).rowcount == _EXPIRE_STEP
