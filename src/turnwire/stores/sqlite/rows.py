"""The conversion of rows: into records, and rows of events and sealed logs into events."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from turnwire.core.contracts.stores import ApiKey, JournalEntry, Seal
from turnwire.core.errors import EventsGoneError, TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.turns import Session, TurnRecord
from turnwire.stores.lines import (
    PAGE_BYTES,
    SealedLogs,
    decode_seal,
    event_page,
    from_entry_lines,
    from_lines,
    page_of,
    unseal,
)

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


def find_turn(connection: sqlite3.Connection, turn_id: str, principal: str | None = None) -> TurnRecord:
    """Return a turn by its id or, for a principal, also by its external id. Raises TurnNotFoundError."""
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
    """Return the record of an unfinished turn with its last position, which only `event` has."""
    query = "SELECT max(last_position) FROM event WHERE id >= ? AND turn = ?"
    position = connection.execute(query, (first_row, number)).fetchone()[0]
    return replace(record, last_position=position or 0)


def read_rows(connection: sqlite3.Connection, rows: Sequence[int], after: int) -> list[LoggedEvent] | None:
    """Return the events of these rows, up to the one that fills a page.

    None if a row is gone because the log was sealed meanwhile.
    """
    query = "SELECT event.id, body, last_position FROM json_each(?) JOIN event ON event.id = value ORDER BY event.id"
    cursor = connection.execute(query, (json.dumps(list(rows)),))
    found: list[tuple[bytes, int]] = []
    size = 0
    for expected in rows:
        row = cursor.fetchone()
        if row is None or row[0] != expected:
            return None
        size += len(row[1]) if found else 0
        found.append(row[1:])
        if size >= PAGE_BYTES:
            break
    return _events(found, after)


def read_turn(
    connection: sqlite3.Connection, sealed_logs: SealedLogs, turn_id: str, after: int, limit: int
) -> list[LoggedEvent]:
    """Return events of any turn, live or sealed. Raises TurnNotFoundError, EventsGoneError."""
    connection.execute("BEGIN")  # One view of the database: sealing moves events from one table to another.
    try:
        query = "SELECT number, first_row, sealed, first_kept FROM turn WHERE id = ?"
        row = connection.execute(query, (turn_id,)).fetchone()
        if row is None:
            raise TurnNotFoundError(turn_id)
        number, first_row, sealed, first_kept = row
        if after + 1 < first_kept:
            raise EventsGoneError(turn_id, after, first_kept)
        if sealed:
            lines = sealed_logs.get(number, first_kept)
            if lines is None:
                body = connection.execute("SELECT body FROM sealed_log WHERE turn = ?", (number,)).fetchone()[0]
                lines = sealed_logs.add(number, first_kept, body)
            start = after + 1 - first_kept
            return from_lines(page_of(lines, start, limit), after + 1)
        query = (
            "SELECT body, last_position FROM event WHERE id >= ? AND turn = ? AND last_position > ? ORDER BY id LIMIT ?"
        )
        return event_page(_events(connection.execute(query, (first_row, number, after, limit)), after), limit)
    finally:
        connection.execute("COMMIT")


def read_journal(connection: sqlite3.Connection, turn_id: str) -> list[JournalEntry]:
    """Return the journal of any turn, live or sealed. Raises TurnNotFoundError."""
    connection.execute("BEGIN")  # One view of the database: sealing moves entries from one table to another.
    try:
        query = "SELECT number, calls FROM turn LEFT JOIN sealed_log ON turn = number WHERE id = ?"
        row = connection.execute(query, (turn_id,)).fetchone()
        if row is None:
            raise TurnNotFoundError(turn_id)
        number, sealed = row
        return from_entry_lines(b"\n".join(unseal(sealed)) if sealed else read_calls(connection, number))
    finally:
        connection.execute("COMMIT")


def read_seal(connection: sqlite3.Connection, turn_id: str) -> Seal | None:
    """Return the seal of a turn. Raises TurnNotFoundError."""
    query = "SELECT seal FROM turn LEFT JOIN sealed_log ON turn = number WHERE id = ?"
    row = connection.execute(query, (turn_id,)).fetchone()
    if row is None:
        raise TurnNotFoundError(turn_id)
    return decode_seal(row[0])


def read_ended(connection: sqlite3.Connection, after_turn_id: str, limit: int) -> list[TurnRecord]:
    """Return ended turns of all principals, by ascending ids."""
    query = f"SELECT {TURN_COLUMNS} FROM turn WHERE id > ? AND phase = 'ended' ORDER BY id LIMIT ?"
    return [turn_from(row) for row in connection.execute(query, (after_turn_id, limit))]


def read_calls(connection: sqlite3.Connection, number: int) -> bytes:
    """Return the lines of the journal of a turn that is not sealed."""
    query = "SELECT body FROM call WHERE turn = ? ORDER BY id"
    return b"\n".join(row[0] for row in connection.execute(query, (number,)))


def _events(rows: Iterable[tuple[bytes, int]], after: int) -> list[LoggedEvent]:
    """Return the events of these rows, up to the row that fills a page.

    The first row does not count, because most of it may be before the page.
    """
    events: list[LoggedEvent] = []
    size = 0
    for body, last_position in rows:
        lines = body.split(b"\n")
        size += len(body) if events else 0
        events += from_lines(lines, last_position - len(lines) + 1)
        if size >= PAGE_BYTES:
            break
    # The first row may begin at or before `after`.
    return events[after + 1 - events[0].position :] if events else []
