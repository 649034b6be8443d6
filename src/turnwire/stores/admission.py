"""The acceptance of a turn: all checks and the opening of its log in one transaction, in both databases."""

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.stores import Accepted, Admission, NewTurn, SqlConnection
from turnwire.core.errors import (
    EventsGoneError,
    IdempotencyConflictError,
    SessionExistsError,
    SessionNotFoundError,
    TurnNotFoundError,
)
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.blobs import add_blobs, use_blobs
from turnwire.stores.database import Database
from turnwire.stores.lines import to_entry_lines
from turnwire.stores.rows import RECORD, TURN, comparable, folded, options_columns, record_from
from turnwire.stores.rules import check_admission
from turnwire.stores.sessions import find_session, insert_session

TURN_COLUMNS = (
    *("id", "session_id", "principal", "agent", "message", "folded_message", "channel", "external_id"),
    *("parent_turn_id", "idempotency_key", "fingerprint", "options", "attachments", "disconnect_grace", "created_at"),
)
_SITUATION = """
    SELECT EXISTS (SELECT 1 FROM turnwire.session WHERE id = $2 AND principal = $1),
        (SELECT count(*) FROM turnwire.head WHERE principal = $1),
        (SELECT count(*) FROM turnwire.head WHERE session_id = $2),
        (SELECT id FROM turnwire.turn WHERE session_id = $2 ORDER BY number DESC LIMIT 1)
"""
_SUPERSEDE = """
    INSERT INTO turnwire.command (turn_id, kind, reason)
    SELECT id, 'cancel', 'superseded' FROM turnwire.head WHERE session_id = $1 AND id <> $2 {}
    ON CONFLICT DO NOTHING
"""


class Acceptance(Struct):
    """The result of `accept_turn`. `superseded` are the unfinished turns of the session, which are commanded to end."""

    accepted: Accepted
    number: int = 0
    superseded: list[TurnRecord] = []


class TurnInsert(Protocol):
    """Insert a turn and its opening events, note the activity and title of its session, and return its number."""

    async def __call__(self, connection: SqlConnection, new: NewTurn, record: TurnRecord) -> int: ...


async def accept_turn(
    connection: SqlConnection,
    database: Database,
    new: NewTurn,
    admission: Admission,
    insert: TurnInsert,
    *,
    is_retry: bool,
) -> Acceptance:
    """Insert the turn, or find the one that it repeats. Raises what `TurnStore.create_turn` raises."""
    record = new.record
    repeated = await _find_repeated(connection, new, is_retry)
    if repeated is not None:
        return Acceptance(repeated)
    if new.session is not None:
        name = new.session.external_id
        if name is not None and await find_session(connection, record.principal, name) is not None:
            raise SessionExistsError(name)
        await insert_session(connection, new.session)
    row = await connection.fetchrow(_SITUATION, record.principal, record.session_id)
    assert row is not None
    has_session, unfinished, in_session, last = row
    if not has_session:
        raise SessionNotFoundError(record.session_id)
    check_admission(admission, record.session_id, in_session, unfinished)
    if record.parent_turn_id is None:
        record = replace(record, parent_turn_id=last)
    if new.forked_from is not None:
        query = "SELECT first_kept FROM turnwire.turn WHERE id = $1"
        first_kept = await connection.fetchval(query, new.forked_from)
        if first_kept is None:
            raise TurnNotFoundError(new.forked_from)
        if first_kept > 1:
            raise EventsGoneError(new.forked_from, 0, first_kept)
    number = await insert(connection, new, record)
    await add_blobs(connection, record.session_id, new.blobs, admission.max_file_bytes)
    await use_blobs(connection, record.session_id, record.id, new.digests)
    if new.entries:
        query = "INSERT INTO turnwire.call (turn, body) VALUES ($1, $2)"
        await connection.execute(query, number, to_entry_lines(new.entries))
    superseded: list[TurnRecord] = []
    if admission.on_busy == "interrupt" and in_session:
        superseded = await _supersede(connection, database, record)
    return Acceptance(Accepted(record, created=True), number, superseded)


def turn_values(new: NewTurn, record: TurnRecord) -> tuple[object, ...]:
    """Return the values of `TURN_COLUMNS`."""
    options, attachments = options_columns(record.options)
    return (
        *(record.id, record.session_id, record.principal, record.agent, record.message, folded(record.message)),
        *(record.channel, record.external_id, record.parent_turn_id, new.idempotency_key, new.fingerprint),
        *(options, attachments, record.disconnect_grace, record.created_at),
    )


async def _supersede(connection: SqlConnection, database: Database, record: TurnRecord) -> list[TurnRecord]:
    """Command the other turns of the session to end, and return them."""
    await connection.execute(_SUPERSEDE.format(database.row_lock("FOR KEY SHARE")), record.session_id, record.id)
    query = f"SELECT {RECORD} FROM {TURN} WHERE h.session_id = $1 AND h.id <> $2"
    return [record_from(row) for row in await connection.fetch(query, record.session_id, record.id)]


async def _find_repeated(connection: SqlConnection, new: NewTurn, is_retry: bool) -> Accepted | None:
    """Return the turn that has the same key, or the client's id as its own or as its external id."""
    principal = new.record.principal
    if is_retry:
        # The reply to the first attempt was lost. If it was committed, this is its turn.
        row = await connection.fetchrow(f"SELECT {RECORD} FROM {TURN} WHERE t.id = $1", new.record.id)
        if row is not None:
            return Accepted(record_from(row), created=True)
    for condition, name in (
        ("t.idempotency_key = $2", new.idempotency_key),
        ("(t.external_id = $2 OR t.id = $2)", new.record.external_id),
    ):
        if name is None:
            continue
        query = f"SELECT {RECORD}, t.fingerprint FROM {TURN} WHERE t.principal = $1 AND {condition}"
        row = await connection.fetchrow(query, principal, comparable(name))
        if row is not None:
            if row["fingerprint"] != new.fingerprint:
                raise IdempotencyConflictError(name)
            return Accepted(record_from(row), created=False)
    return None
