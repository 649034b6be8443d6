"""The acceptance of a turn: all checks and the opening of its log, in one transaction."""

import asyncio
import json
import sqlite3

from msgspec.structs import replace

from turnwire.core.contracts.stores import Accepted, Admission, Command, NewTurn
from turnwire.core.errors import IdempotencyConflictError, SessionExistsError, SessionNotFoundError
from turnwire.core.log.files import default_title
from turnwire.core.log.turns import Session, TurnRecord
from turnwire.stores.lines import to_entry_lines, to_lines
from turnwire.stores.rules import LogHead, check_admission, check_fork
from turnwire.stores.sqlite.blobs import add_blobs, use_blobs
from turnwire.stores.sqlite.live_turn import LiveTurn, LiveTurns
from turnwire.stores.sqlite.registry import insert_session
from turnwire.stores.sqlite.rows import TURN_COLUMNS, turn_from
from turnwire.stores.sqlite.writer import SqliteWriter


class SqliteAdmission:
    def __init__(self, writer: SqliteWriter, turns: LiveTurns) -> None:
        self._writer = writer
        self._turns = turns

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        await self._writer.refuse_if_full()
        # A turn that is committed must become live even if the caller is cancelled.
        return await asyncio.shield(self._accept(new, admission))

    async def _accept(self, new: NewTurn, admission: Admission) -> Accepted:
        turns, row = self._turns, self._turns.take_row()
        turns.accepting.add(row)
        try:
            accepted, number = await self._writer.write(lambda connection: _accept(connection, new, admission, row))
            record = accepted.record
            if accepted.created:
                head = LogHead(record.id, record.epoch, record.last_position)
                live = turns.by_id[record.id] = LiveTurn(number, record, head, row)
                live.add_committed(row, new.opening)
        finally:
            turns.accepting.discard(row)
        if not accepted.created:
            return Accepted(turns.current(record), created=False)
        if admission.on_busy == "interrupt":
            for turn_id in turns.queue.unfinished(record.session_id):
                turns.take_command(turns.by_id[turn_id], Command(turn_id, "superseded"))
        turns.enqueue(record, queued=record.phase == "queued")
        turns.watchers.notify(record.session_id, ())
        return accepted


def _accept(connection: sqlite3.Connection, new: NewTurn, admission: Admission, row: int) -> tuple[Accepted, int]:
    """Insert the turn, or find the one that it repeats. Return it with its number."""
    repeated = _find_repeated(connection, new)
    if repeated is not None:
        return repeated
    record, session = new.record, new.session
    if session is not None and session.external_id is not None:
        _check_new_session(connection, session)
    _check_admission(connection, record, admission, has_session=session is not None)
    if new.forked_from is not None:
        source = connection.execute("SELECT first_kept FROM turn WHERE id = ?", (new.forked_from,)).fetchone()
        check_fork(new.forked_from, source[0] if source else None)
    if session is not None:
        title = session.title or default_title(record)
        insert_session(connection, replace(session, title=title, updated_at=record.created_at))
    elif record.parent_turn_id is None:
        query = "SELECT id FROM turn WHERE session_id = ? ORDER BY number DESC LIMIT 1"
        last = connection.execute(query, (record.session_id,)).fetchone()
        record = replace(record, parent_turn_id=last[0] if last else None)
    if admission.on_busy == "interrupt":
        connection.execute(
            "INSERT OR IGNORE INTO command (turn, kind, reason)"
            " SELECT number, 'cancel', 'superseded' FROM turn WHERE session_id = ? AND phase <> 'ended'",
            (record.session_id,),
        )
    number = _insert(connection, new, record, row)
    add_blobs(connection, record.session_id, new.blobs, admission.max_file_bytes)
    use_blobs(connection, record.session_id, number, new.digests)
    connection.execute(
        "INSERT INTO event (id, turn, last_position, body) VALUES (?, ?, ?, ?)",
        (row, number, record.last_position, to_lines(new.opening)),
    )
    if new.entries:
        query = "INSERT INTO call (turn, body) VALUES (?, ?)"
        connection.execute(query, (number, to_entry_lines(new.entries)))
    if new.checkpoint is not None:
        connection.execute("INSERT INTO checkpoint (turn, body) VALUES (?, ?)", (number, new.checkpoint))
    if session is None:
        connection.execute(
            "UPDATE session SET updated_at = ?, title = coalesce(title, ?) WHERE id = ?",
            (record.created_at, default_title(record), record.session_id),
        )
    return Accepted(record, created=True), number


def _insert(connection: sqlite3.Connection, new: NewTurn, record: TurnRecord, row: int) -> int:
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
    return number


def _check_new_session(connection: sqlite3.Connection, session: Session) -> None:
    query = "SELECT 1 FROM session WHERE principal = ? AND external_id = ?"
    if connection.execute(query, (session.principal, session.external_id)).fetchone() is not None:
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


def _check_admission(
    connection: sqlite3.Connection, record: TurnRecord, admission: Admission, *, has_session: bool
) -> None:
    query = "SELECT 1 FROM session WHERE id = ? AND principal = ?"
    if not has_session and connection.execute(query, (record.session_id, record.principal)).fetchone() is None:
        raise SessionNotFoundError(record.session_id)
    unfinished, in_session = connection.execute(
        "SELECT count(*), total(session_id = ?) FROM turn WHERE principal = ? AND phase <> 'ended'",
        (record.session_id, record.principal),
    ).fetchone()
    check_admission(admission, record.session_id, int(in_session), unfinished)
