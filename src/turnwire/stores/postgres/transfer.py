"""The import of everything that another store has."""

import json
from collections.abc import Sequence
from itertools import groupby

from turnwire.core.budget import day_of
from turnwire.core.codec import now_ms
from turnwire.core.contracts import Annotation, ApiKey
from turnwire.core.seals import make_seal
from turnwire.core.turns import Session, TurnRecord
from turnwire.stores.lines import encode_seal, seal, state_from, to_entry_lines, to_lines
from turnwire.stores.postgres.annotations import INSERT, column_values
from turnwire.stores.postgres.connections import DatabaseConnection
from turnwire.stores.postgres.rows import folded
from turnwire.stores.postgres.schema import ensure_partition
from turnwire.stores.postgres.store import PostgresStore
from turnwire.stores.rules import without_attachments
from turnwire.stores.transfer import MovingTurn, TokensSpent

_WHOLE_LOG = 2**30
_TURN = """
    INSERT INTO turnwire.turn (id, day, session_id, principal, agent, message, folded_message, channel, external_id,
        parent_turn_id, idempotency_key, fingerprint, options, attachments, disconnect_grace, created_at, first_kept,
        sealed, outcome, worker, epoch, last_position, started_at, waiting_until, ended_at, folded_answer, state)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23,
        $24, $25, $26, $27)
    ON CONFLICT (id) DO NOTHING RETURNING number
"""
_HEAD = """
    INSERT INTO turnwire.head (id, number, day, session_id, principal, phase, worker, epoch, last_position, started_at,
        waiting_until)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
_EVENT = (
    "INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body) VALUES ($1, $2, $3, $4, $5, $6)"
)


class PostgresImport:
    """The `TransferTarget` of a database. A server may use it meanwhile."""

    def __init__(self, url: str, *, seal_key: bytes | None = None) -> None:
        self._store = PostgresStore(url)
        self._seal_key = seal_key
        self._connections = self._store.connections

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def missing_turns(self, turn_ids: Sequence[str]) -> set[str]:
        query = "SELECT id FROM turnwire.turn WHERE id = ANY($1)"
        return set(turn_ids) - {row[0] for row in await self._connections.fetch(query, list(turn_ids))}

    async def take_sessions(self, sessions: Sequence[Session]) -> None:
        query = """
            INSERT INTO turnwire.session (id, principal, external_id, title, folded_title, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING
        """

        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            async with connection.transaction():
                for session in sessions:
                    folded_title = None if session.title is None else folded(session.title)
                    await connection.execute(
                        query,
                        *(session.id, session.principal, session.external_id, session.title, folded_title),
                        *(session.created_at, session.updated_at),
                    )

        await self._connections.run(call)

    async def take_turns(self, turns: Sequence[MovingTurn]) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            days = {day_of(turn.record.created_at) for turn in turns if turn.record.phase != "ended"}
            await ensure_partition(connection, *days)
            async with connection.transaction():
                for turn in turns:
                    await _take(connection, turn, self._seal_key)

        await self._connections.run(call)

    async def take_annotations(self, annotations: Sequence[Annotation]) -> None:
        for annotation in annotations:
            await self._connections.execute(f"{INSERT} DO NOTHING", *column_values(annotation))

    async def take_spent(self, spent: Sequence[TokensSpent]) -> None:
        query = """
            INSERT INTO turnwire.spending (principal, day, tokens) VALUES ($1, $2, $3)
            ON CONFLICT (principal, day) DO UPDATE SET tokens = greatest(spending.tokens, excluded.tokens)
        """
        for entry in spent:
            await self._connections.execute(query, entry.principal, entry.day, entry.tokens)

    async def take_keys(self, keys: Sequence[ApiKey]) -> None:
        existing = {key.id for key in await self._store.list_keys()}
        for key in keys:
            if key.id not in existing:
                await self._store.add_key(key)

    async def lines_of(self, turn_id: str) -> tuple[bytes, bytes]:
        query = "SELECT first_kept FROM turnwire.turn WHERE id = $1"
        first_kept = await self._connections.fetchval(query, turn_id)
        log = await self._store.read(turn_id, first_kept - 1, _WHOLE_LOG)
        return to_lines(log), to_entry_lines(await self._store.journal(turn_id))


async def _take(connection: DatabaseConnection, turn: MovingTurn, key: bytes | None) -> None:
    record = turn.record
    ended = record.phase == "ended"
    day = day_of(record.created_at)
    state = state_from(turn.state)
    attachments = record.options.get("attachments")
    number: int | None = await connection.fetchval(
        _TURN,
        *(record.id, day, record.session_id, record.principal, record.agent, record.message, folded(record.message)),
        *(record.channel, record.external_id, record.parent_turn_id, turn.idempotency_key, turn.fingerprint),
        *(json.dumps(without_attachments(record.options)), None if attachments is None else json.dumps(attachments)),
        *(record.disconnect_grace, record.created_at, record.first_kept, ended, record.outcome, record.worker),
        *(record.epoch, record.last_position, record.started_at, record.waiting_until, record.ended_at),
        *(None if state is None else folded(state.text), turn.state),
    )
    if number is None:
        return  # An earlier attempt, whose reply was lost, has inserted it.
    if ended:
        evidence = turn.seal
        if evidence is None:  # The log has not been sealed before.
            evidence = encode_seal(make_seal(record.id, turn.lines, turn.calls, key, now_ms()))
        query = "INSERT INTO turnwire.sealed_log (turn, body, calls, seal) VALUES ($1, $2, $3, $4)"
        calls = seal(turn.calls) if turn.calls else None
        await connection.execute(query, number, seal(turn.lines), calls, evidence or None)
    else:
        await _take_unfinished(connection, turn, record, number, day)


async def _take_unfinished(
    connection: DatabaseConnection, turn: MovingTurn, record: TurnRecord, number: int, day: int
) -> None:
    await connection.execute(
        _HEAD,
        *(record.id, number, day, record.session_id, record.principal, record.phase, record.worker, record.epoch),
        *(record.last_position, record.started_at, record.waiting_until),
    )
    position = record.first_kept
    for epoch, group in groupby(turn.lines.split(b"\n"), key=lambda line: int(line.partition(b" ")[0])):
        lines = list(group)
        last = position + len(lines) - 1
        await connection.execute(_EVENT, day, number, last, position, epoch, b"\n".join(lines))
        position = last + 1
    if turn.calls:
        query = "INSERT INTO turnwire.recorded_call (turn, body) VALUES ($1, $2)"
        await connection.execute(query, number, turn.calls)
    if turn.checkpoint is not None:
        query = "INSERT INTO turnwire.checkpoint (turn_id, body) VALUES ($1, $2)"
        await connection.execute(query, record.id, turn.checkpoint)
    if turn.command is not None:
        query = "INSERT INTO turnwire.command (turn_id, kind, reason) VALUES ($1, $2, $3)"
        await connection.execute(query, record.id, turn.command.kind, turn.command.reason)
