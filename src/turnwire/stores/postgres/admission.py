"""The acceptance of a turn: all checks and the opening of its log, in one transaction.

The transaction holds the principal's lock, so limits are exact, a key is used once, and the turns of a session are
numbered in the order of their commits.
"""

import asyncio
import json

from msgspec.structs import replace

from turnwire.core.contracts.stores import RUNNABLE, Accepted, Admission, NewTurn
from turnwire.core.errors import IdempotencyConflictError, SessionExistsError, SessionNotFoundError
from turnwire.core.log.files import default_title
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import day_of
from turnwire.stores.lines import to_entry_lines, to_lines
from turnwire.stores.postgres.blobs import add_blobs, use_blobs
from turnwire.stores.postgres.connections import Connections, DatabaseConnection, NoPartition
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.registry import insert_session
from turnwire.stores.postgres.rows import RECORD, TURN, folded, record_from
from turnwire.stores.postgres.schema import ensure_partition, lock_principal
from turnwire.stores.rules import check_admission, check_fork, without_attachments

_INSERT = """
    WITH new AS (
        INSERT INTO turnwire.turn (id, day, session_id, principal, agent, message, folded_message, channel, external_id,
            parent_turn_id, idempotency_key, fingerprint, options, attachments, disconnect_grace, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) RETURNING number
    ), begun AS (
        INSERT INTO turnwire.head (id, number, day, session_id, principal, phase, epoch, last_position, waiting_until)
        SELECT $1, number, $2, $3, $4, $22, $17, $18, $23 FROM new
    ), opened AS (
        INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body)
        SELECT $2, number, $18, 1, $17, $19 FROM new
    )
    UPDATE turnwire.session SET updated_at = $16, title = coalesce(title, $20),
        folded_title = coalesce(folded_title, $21) WHERE id = $3
    RETURNING (SELECT number FROM new)
"""
_SUPERSEDE = """
    INSERT INTO turnwire.command (turn_id, kind, reason)
    SELECT id, 'cancel', 'superseded' FROM turnwire.head WHERE session_id = $1 AND id <> $2 FOR KEY SHARE
    ON CONFLICT DO NOTHING
"""


class PostgresAdmission:
    def __init__(self, connections: Connections, notifier: CommitNotifier) -> None:
        self._connections = connections
        self._notifier = notifier

    async def create_turn(self, new: NewTurn, admission: Admission) -> Accepted:
        # Workers must hear of a committed turn even if the caller is cancelled.
        return await asyncio.shield(self._create(new, admission))

    async def _create(self, new: NewTurn, admission: Admission) -> Accepted:
        async def call(connection: DatabaseConnection, is_retry: bool) -> tuple[Accepted, int, list[str]]:
            try:
                async with connection.transaction():
                    return await _accept(connection, new, admission, is_retry)
            except NoPartition:
                # The day has no partition yet: no maintenance has run since the day before.
                await ensure_partition(connection, day_of(new.record.created_at))
            async with connection.transaction():
                return await _accept(connection, new, admission, is_retry)

        accepted, number, workers = await self._connections.run(call)
        if accepted.created:
            self._notifier.accepted(accepted.record.session_id, number)
            for key in (RUNNABLE, *workers):
                self._notifier.changed(key)
        return accepted


async def _accept(
    connection: DatabaseConnection, new: NewTurn, admission: Admission, is_retry: bool
) -> tuple[Accepted, int, list[str]]:
    """Return the turn, its number, and the workers that got commands."""
    record = new.record
    await lock_principal(connection, record.principal)
    repeated = await _find_repeated(connection, new, is_retry)
    if repeated is not None:
        return repeated, 0, []
    if new.session is not None:
        query = "SELECT 1 FROM turnwire.session WHERE principal = $1 AND external_id = $2"
        name = new.session.external_id
        if name is not None and await connection.fetchval(query, record.principal, name):
            raise SessionExistsError(name)
        await insert_session(connection, new.session)
    query = """
        SELECT EXISTS (SELECT 1 FROM turnwire.session WHERE id = $2 AND principal = $1),
            (SELECT count(*) FROM turnwire.head WHERE principal = $1),
            (SELECT count(*) FROM turnwire.head WHERE session_id = $2),
            (SELECT id FROM turnwire.turn WHERE session_id = $2 ORDER BY number DESC LIMIT 1)
    """
    row = await connection.fetchrow(query, record.principal, record.session_id)
    assert row is not None
    has_session, unfinished, in_session, last = row
    if not has_session:
        raise SessionNotFoundError(record.session_id)
    check_admission(admission, record.session_id, in_session, unfinished)
    if record.parent_turn_id is None:
        record = replace(record, parent_turn_id=last)
    if new.forked_from is not None:
        query = "SELECT first_kept FROM turnwire.turn WHERE id = $1"
        check_fork(new.forked_from, await connection.fetchval(query, new.forked_from))
    number = await _insert(connection, new, record)
    await add_blobs(connection, record.session_id, new.blobs, admission.max_file_bytes)
    await use_blobs(connection, record.session_id, record.id, new.digests)
    if new.entries:
        query = "INSERT INTO turnwire.call (turn, body) VALUES ($1, $2)"
        await connection.execute(query, number, to_entry_lines(new.entries))
    if new.checkpoint is not None:
        query = "INSERT INTO turnwire.checkpoint (turn_id, body) VALUES ($1, $2)"
        await connection.execute(query, record.id, new.checkpoint)
    workers: list[str] = []
    if admission.on_busy == "interrupt" and in_session:
        workers = await _supersede(connection, record.session_id, record.id)
    return Accepted(record, created=True), number, workers


async def _insert(connection: DatabaseConnection, new: NewTurn, record: TurnRecord) -> int:
    attachments = record.options.get("attachments")
    title = default_title(record)
    return await connection.fetchval(
        _INSERT,
        record.id,
        day_of(record.created_at),
        record.session_id,
        record.principal,
        record.agent,
        record.message,
        folded(record.message),
        record.channel,
        record.external_id,
        record.parent_turn_id,
        new.idempotency_key,
        new.fingerprint,
        json.dumps(without_attachments(record.options)),
        None if attachments is None else json.dumps(attachments),
        record.disconnect_grace,
        record.created_at,
        record.epoch,
        record.last_position,
        to_lines(new.opening),
        title,
        folded(title),
        record.phase,
        record.waiting_until,
    )


async def _supersede(connection: DatabaseConnection, session_id: str, turn_id: str) -> list[str]:
    """Command the other turns of the session to end. Return the workers that run them."""
    await connection.execute(_SUPERSEDE, session_id, turn_id)
    query = "SELECT DISTINCT worker FROM turnwire.head WHERE session_id = $1 AND worker IS NOT NULL"
    return [row[0] for row in await connection.fetch(query, session_id)]


async def _find_repeated(connection: DatabaseConnection, new: NewTurn, is_retry: bool) -> Accepted | None:
    principal = new.record.principal
    if is_retry:
        # The reply to the first attempt was lost. If it was committed, this is its turn.
        row = await connection.fetchrow(f"SELECT {RECORD} FROM {TURN} WHERE t.id = $1", new.record.id)
        if row is not None:
            return Accepted(record_from(row), created=True)
    for column, name in (("idempotency_key", new.idempotency_key), ("external_id", new.record.external_id)):
        if name is None:
            continue
        query = f"SELECT {RECORD}, t.fingerprint FROM {TURN} WHERE t.principal = $1 AND t.{column} = $2"
        row = await connection.fetchrow(query, principal, name)
        if row is not None:
            if row["fingerprint"] != new.fingerprint:
                raise IdempotencyConflictError(name)
            return Accepted(record_from(row), created=False)
    return None
