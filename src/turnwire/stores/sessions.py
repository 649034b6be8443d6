"""Sessions, in both databases."""

from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import SessionBusyError, SessionNotFoundError
from turnwire.core.log.turns import Session, new_session
from turnwire.stores.database import StorePart
from turnwire.stores.rows import SESSION, comparable, folded, session_from


class StoredSessions(StorePart):
    """The `SessionStore` of both databases."""

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        session = new_session(principal, external_id, title)

        async def ensure(connection: SqlConnection, is_retry: bool) -> tuple[Session, bool]:
            # The first attempt may have created it.
            existing = await find_session(connection, principal, session.id if external_id is None else external_id)
            if existing is not None:
                return existing, existing.id == session.id
            await insert_session(connection, session)
            return session, True

        return await self._database.write(ensure, lock=principal, adds=True)

    async def find_session(self, principal: str, session_id: str) -> Session:
        return await self._database.read(lambda connection: _session(connection, principal, session_id))

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        values: list[object] = [principal, limit]
        where = "s.principal = $1"
        if before is not None:
            last = await self.find_session(principal, before)
            values += [last.updated_at, last.id]
            where += " AND (s.updated_at, s.id) < ($3, $4)"
        if search:
            values.append(folded(search))
            found = f"{self._database.position_in}({{}}, ${len(values)}) > 0".format
            where += (
                f" AND ({found('s.folded_title')} OR EXISTS (SELECT 1 FROM turnwire.turn t WHERE"
                f" t.session_id = s.id AND ({found('t.folded_message')} OR {found('t.folded_answer')})))"
            )
        query = f"SELECT {SESSION} FROM turnwire.session s WHERE {where} ORDER BY s.updated_at DESC, s.id DESC LIMIT $2"
        rows = await self._database.read(lambda connection: connection.fetch(query, *values), searches=bool(search))
        return [session_from(row) for row in rows]

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        async def rename(connection: SqlConnection, is_retry: bool) -> Session:
            session = await _session(connection, principal, session_id)
            query = "UPDATE turnwire.session SET title = $2, folded_title = $3 WHERE id = $1"
            await connection.execute(query, session.id, title, folded(title))
            return await _session(connection, principal, session.id)

        return await self._database.write(rename, lock=principal)

    async def delete_session(self, principal: str, session_id: str) -> None:
        async def delete(connection: SqlConnection, is_retry: bool) -> str | None:
            session = await find_session(connection, principal, session_id)
            if session is None:
                if is_retry:
                    return None  # The first attempt deleted it.
                raise SessionNotFoundError(session_id)
            query = "SELECT count(*) FROM turnwire.head WHERE session_id = $1"
            if unfinished := await connection.fetchval(query, session.id):
                raise SessionBusyError(session.id, unfinished)
            await self._database.erase_turns(connection, "session_id", session.id)
            await connection.execute("DELETE FROM turnwire.session WHERE id = $1", session.id)
            return session.id

        if (deleted := await self._database.write(delete, lock=principal, erases=True)) is not None:
            self._forget_session(deleted)
            self._database.changed(deleted)

    def _forget_session(self, session_id: str) -> None:
        """Drop what this process keeps of a session that was erased."""


async def find_session(connection: SqlConnection, principal: str, session_id: str) -> Session | None:
    """Return a session by its id or by the client's own."""
    query = f"SELECT {SESSION} FROM turnwire.session s WHERE s.principal = $1 AND (s.id = $2 OR s.external_id = $2)"
    row = await connection.fetchrow(query, principal, comparable(session_id))
    return session_from(row) if row else None


async def _session(connection: SqlConnection, principal: str, session_id: str) -> Session:
    session = await find_session(connection, principal, session_id)
    if session is None:
        raise SessionNotFoundError(session_id)
    return session


async def insert_session(connection: SqlConnection, session: Session) -> None:
    """Insert a session, unless it is there."""
    query = """
        INSERT INTO turnwire.session (id, principal, external_id, title, folded_title, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING
    """
    folded_title = None if session.title is None else folded(session.title)
    names = (session.id, session.principal, session.external_id, session.title, folded_title)
    await connection.execute(query, *names, session.created_at, session.updated_at)
