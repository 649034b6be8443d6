"""Accepting a turn: all checks and the beginning of its log, in one transaction."""

import json
import sqlite3

from msgspec.structs import replace

from turnwire.core.contracts import Accepted, Admission, NewTurn
from turnwire.core.errors import IdempotencyConflictError, SessionExistsError, SessionNotFoundError
from turnwire.core.turns import Session, title_from
from turnwire.stores.lines import to_lines
from turnwire.stores.rules import check_admission
from turnwire.stores.sqlite.queries import TURN_COLUMNS, turn_from
from turnwire.stores.sqlite.registry import insert_session


def accept(connection: sqlite3.Connection, new: NewTurn, admission: Admission, row: int) -> tuple[Accepted, int]:
    """The turn, and its number in the table."""
    repeated = _find_repeated(connection, new)
    if repeated is not None:
        return repeated
    record = new.record
    if new.session is not None:
        _refuse_known(connection, new.session)
        insert_session(connection, new.session)
    _check_admission(connection, new, admission)
    if record.parent_turn_id is None:
        query = "SELECT id FROM turn WHERE session_id = ? ORDER BY number DESC LIMIT 1"
        last = connection.execute(query, (record.session_id,)).fetchone()
        record = replace(record, parent_turn_id=last[0] if last else None)
    if admission.on_busy == "interrupt":
        connection.execute(
            "INSERT OR IGNORE INTO command (turn, kind, reason)"
            " SELECT number, 'cancel', 'superseded' FROM turn WHERE session_id = ? AND phase <> 'ended'",
            (record.session_id,),
        )
    names = TURN_COLUMNS.split(", ")[:-1]
    values = {name: getattr(record, name) for name in names}
    values |= {
        "options": json.dumps(record.options),
        "idempotency_key": new.idempotency_key,
        "fingerprint": new.fingerprint,
        "first_row": row,
    }
    number = connection.execute(
        f"INSERT INTO turn ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
        tuple(values.values()),
    ).lastrowid
    assert number is not None
    connection.execute(
        "INSERT INTO journal (id, turn, last_position, body) VALUES (?, ?, ?, ?)",
        (row, number, record.last_position, to_lines(new.opening)),
    )
    connection.execute(
        "UPDATE session SET updated_at = ?, title = coalesce(title, ?) WHERE id = ?",
        (record.created_at, title_from(record.message), record.session_id),
    )
    return Accepted(record, created=True), number


def _refuse_known(connection: sqlite3.Connection, session: Session) -> None:
    known = connection.execute(
        "SELECT 1 FROM session WHERE principal = ? AND external_id = ?", (session.principal, session.external_id)
    ).fetchone()
    if known is not None:
        raise SessionExistsError(session.external_id or "")


def _find_repeated(connection: sqlite3.Connection, new: NewTurn) -> tuple[Accepted, int] | None:
    principal = new.record.principal
    for column, name in (("idempotency_key", new.idempotency_key), ("external_id", new.record.external_id)):
        if name is None:
            continue
        row = connection.execute(
            f"SELECT {TURN_COLUMNS}, number, fingerprint FROM turn WHERE principal = ? AND {column} = ?",
            (principal, name),
        ).fetchone()
        if row is not None:
            if row[-1] != new.fingerprint:
                raise IdempotencyConflictError(name)
            return Accepted(turn_from(row[:-2]), created=False), row[-2]
    return None


def _check_admission(connection: sqlite3.Connection, new: NewTurn, admission: Admission) -> None:
    record = new.record
    found = connection.execute(
        "SELECT 1 FROM session WHERE id = ? AND principal = ?", (record.session_id, record.principal)
    ).fetchone()
    if found is None:
        raise SessionNotFoundError(record.session_id)
    unfinished, in_session = connection.execute(
        "SELECT count(*), total(session_id = ?) FROM turn WHERE principal = ? AND phase <> 'ended'",
        (record.session_id, record.principal),
    ).fetchone()
    check_admission(admission, record.session_id, int(in_session), unfinished)
