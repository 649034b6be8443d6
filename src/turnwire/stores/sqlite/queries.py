"""Reading the tables: rows into records, journal and sealed logs into events."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import ApiKey
from turnwire.core.errors import EventsGoneError, TurnNotFoundError
from turnwire.core.turns import Session, TurnRecord, TurnState
from turnwire.stores.lines import from_lines, unseal
from turnwire.stores.sqlite.schema import open_reader

TURN_COLUMNS = (
    "id, session_id, principal, agent, message, channel, external_id, parent_turn_id, phase, outcome, worker, epoch,"
    " last_position, first_kept, created_at, started_at, ended_at, waiting_until, disconnect_grace, options"
)
SESSION_COLUMNS = (
    "id, principal, created_at, updated_at, external_id, title,"
    " (SELECT count(*) FROM turn WHERE session_id = session.id) AS turn_count"
)
KEY_COLUMNS = "id, digest, principal, scopes, created_at, expires_at, revoked_at"


def turn_from(row: Sequence[Any]) -> TurnRecord:
    names = TURN_COLUMNS.split(", ")
    return TurnRecord(**dict(zip(names, row[:-1], strict=False)), options=json.loads(row[-1]))


def session_from(row: Sequence[Any]) -> Session:
    session_id, principal, created_at, updated_at, external_id, title, turn_count = row
    return Session(
        id=session_id,
        principal=principal,
        created_at=created_at,
        updated_at=updated_at,
        external_id=external_id,
        title=title,
        turn_count=turn_count,
    )


def key_from(row: Sequence[Any]) -> ApiKey:
    key_id, digest, principal, scopes, created_at, expires_at, revoked_at = row
    return ApiKey(
        id=key_id,
        digest=digest,
        principal=principal,
        scopes=tuple(scopes.split()),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)


def find_turn(connection: sqlite3.Connection, turn_id: str, principal: str | None = None) -> TurnRecord:
    """By our id or, for a principal, by their own."""
    if principal is None:
        where, values = "id = ?", (turn_id,)
    else:
        where, values = "(id = ? OR external_id = ?) AND principal = ?", (turn_id, turn_id, principal)
    row = connection.execute(f"SELECT {TURN_COLUMNS}, first_row, number FROM turn WHERE {where}", values).fetchone()
    if row is None:
        raise TurnNotFoundError(turn_id)
    record = turn_from(row[:-2])
    return record if record.phase == "ended" else with_position(connection, record, row[-2], row[-1])


def with_position(connection: sqlite3.Connection, record: TurnRecord, first_row: int, number: int) -> TurnRecord:
    """An unfinished turn's position is the journal's to tell."""
    query = "SELECT max(last_position) FROM journal WHERE id >= ? AND turn = ?"
    position = connection.execute(query, (first_row, number)).fetchone()[0]
    return msgspec.structs.replace(record, last_position=position or 0)


def read_rows(connection: sqlite3.Connection, rows: Sequence[int], after: int) -> list[LoggedEvent] | None:
    """Events from known journal rows; None if some of them are gone, which means that the log was sealed."""
    query = "SELECT body, last_position FROM json_each(?) JOIN journal ON journal.id = value ORDER BY journal.id"
    found = connection.execute(query, (json.dumps(list(rows)),)).fetchall()
    return _events(found, after) if len(found) == len(rows) else None


def read_turn(connection: sqlite3.Connection, turn_id: str, after: int, limit: int) -> list[LoggedEvent]:
    """Events of any turn, wherever they are. Raises TurnNotFoundError, EventsGoneError."""
    connection.execute("BEGIN")  # One view of the database: sealing moves events from one table to another.
    try:
        query = "SELECT number, first_row, sealed, first_kept FROM turn WHERE id = ?"
        found = connection.execute(query, (turn_id,)).fetchone()
        if found is None:
            raise TurnNotFoundError(turn_id)
        number, first_row, sealed, first_kept = found
        if after + 1 < first_kept:
            raise EventsGoneError(turn_id, after, first_kept)
        if sealed:
            body = connection.execute("SELECT body FROM sealed_log WHERE turn = ?", (number,)).fetchone()[0]
            start = after + 1 - first_kept
            return from_lines(unseal(body)[start : start + limit], after + 1)
        query = (
            "SELECT body, last_position FROM journal WHERE id >= ? AND turn = ? AND last_position > ?"
            " ORDER BY id LIMIT ?"
        )
        return _events(connection.execute(query, (first_row, number, after, limit)).fetchall(), after)[:limit]
    finally:
        connection.execute("COMMIT")


def _events(rows: Sequence[tuple[bytes, int]], after: int) -> list[LoggedEvent]:
    events: list[LoggedEvent] = []
    for body, last_position in rows:
        lines = body.split(b"\n")
        events += from_lines(lines, last_position - len(lines) + 1)
    # The first row may begin before the position.
    return events[after + 1 - events[0].position :] if events else []


# Threads that read, so that the event loop never waits for the disk.


T = TypeVar("T")
_THREADS = 2


class Readers:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="turnwire-reader")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, read)

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def _call(self, read: Callable[[sqlite3.Connection], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(self._path)
            self._connections.append(connection)
        return read(connection)
