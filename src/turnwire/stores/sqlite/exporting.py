"""Everything that is in the file, for whoever moves it elsewhere."""

import sqlite3
from typing import Any

from turnwire.core.contracts import Command
from turnwire.core.sessions import Session
from turnwire.stores.lines import unseal
from turnwire.stores.moving import MovingTurn, Spent
from turnwire.stores.sqlite import reading
from turnwire.stores.sqlite.store import SqliteStore

_TURNS = (
    f"SELECT {reading.TURN_COLUMNS}, number, sealed, first_row, idempotency_key, fingerprint, state"
    " FROM turn WHERE number > ? ORDER BY number LIMIT ?"
)


class SqliteExport(SqliteStore):
    """The store of a folder that no server uses; opening it sees to that."""

    async def count_turns(self) -> int:
        return await self._read(lambda connection: connection.execute("SELECT count(*) FROM turn").fetchone()[0])

    async def sessions_after(self, session_id: str, limit: int) -> list[Session]:
        query = f"SELECT {reading.SESSION_COLUMNS} FROM session WHERE id > ? ORDER BY id LIMIT ?"
        rows = await self._read(lambda connection: connection.execute(query, (session_id, limit)).fetchall())
        return [reading.session_from(row) for row in rows]

    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        return await self._read(
            lambda connection: [
                (row[-6], _moving(connection, row)) for row in connection.execute(_TURNS, (number, limit)).fetchall()
            ]
        )

    async def spent(self) -> list[Spent]:
        query = "SELECT principal, day, tokens FROM spending"
        return [Spent(*row) for row in await self._read(lambda connection: connection.execute(query).fetchall())]


def _moving(connection: sqlite3.Connection, row: Any) -> MovingTurn:
    number, sealed, first_row, key, fingerprint, state = row[-6:]
    record = reading.turn_from(row[:-6])
    if record.phase != "ended":
        record = reading.with_position(connection, record, first_row, number)
    if sealed:
        body = connection.execute("SELECT body FROM sealed_log WHERE turn = ?", (number,)).fetchone()[0]
        lines = b"\n".join(unseal(body))
    else:
        query = "SELECT body FROM journal WHERE id >= ? AND turn = ? ORDER BY id"
        lines = b"\n".join(found[0] for found in connection.execute(query, (first_row, number)))
    checkpoint = connection.execute("SELECT body FROM checkpoint WHERE turn = ?", (number,)).fetchone()
    command = connection.execute("SELECT reason, kind FROM command WHERE turn = ?", (number,)).fetchone()
    return MovingTurn(
        record=record,
        idempotency_key=key,
        fingerprint=fingerprint,
        lines=lines,
        state=state,
        checkpoint=checkpoint[0] if checkpoint else None,
        command=Command(record.id, *command) if command and record.phase != "ended" else None,
    )
