"""Access to a database from outside its servers: reading along, and the import of what another store has."""

import asyncio
from collections.abc import Sequence
from itertools import groupby

from turnwire.core.contracts.stores import Annotation, ApiKey, NewTurn, SqlConnection, Worker
from turnwire.core.log.codec import LoggedEvent, now_ms
from turnwire.core.log.files import Blob
from turnwire.core.log.seals import make_seal
from turnwire.core.log.turns import Session, TurnRecord
from turnwire.core.people.budget import day_of
from turnwire.stores.admission import TURN_COLUMNS, turn_values
from turnwire.stores.archive import Archive
from turnwire.stores.blobs import add_blobs, note_use
from turnwire.stores.lines import SealedLogs, encode_seal, seal, state_from, to_entry_lines, to_lines
from turnwire.stores.postgres.claims import WORKERS
from turnwire.stores.postgres.connections import DatabaseConnection, Row
from turnwire.stores.postgres.rows import NOW, read_log
from turnwire.stores.postgres.schema import ensure_partition
from turnwire.stores.postgres.shared_database import SharedDatabase
from turnwire.stores.postgres.store import PostgresStore
from turnwire.stores.registry import insert_annotation
from turnwire.stores.rows import folded
from turnwire.stores.sessions import insert_session
from turnwire.stores.transfer import MovingTurn, PluginTable, TokensSpent

_WHOLE_LOG = 2**30
_NO_LIMIT = 2**62
_COLUMNS = (
    *(*TURN_COLUMNS, "day", "first_kept", "sealed", "outcome", "worker", "epoch", "last_position", "started_at"),
    *("waiting_until", "ended_at", "folded_answer", "state"),
)
_TURN = f"""
    INSERT INTO turnwire.turn ({", ".join(_COLUMNS)})
    VALUES ({", ".join(f"${number}" for number in range(1, len(_COLUMNS) + 1))})
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


# Reading along


class PostgresArchive(Archive):
    """The `Archive` of a database that servers write to, and a `LogReader` of it."""

    poll_seconds = 0.25

    def __init__(self, database: SharedDatabase) -> None:
        """Connect. Raises StoreUnusableError, also for tables of another version."""
        super().__init__()
        self._database = database
        self._sealed_logs = SealedLogs()
        database.open(migrate=False)

    def close(self) -> None:
        super().close()
        self._database.close()

    @property
    def location(self) -> str:
        return self._database.location

    def workers(self) -> list[Worker]:
        """Return the workers with a valid lease, oldest first."""
        return [Worker(**dict(row)) for row in self._fetch(WORKERS, None)]

    def extensions(self) -> list[tuple[str, str]]:
        """Return the extensions that run, and the process of each."""
        query = f"SELECT name, holder FROM turnwire.lease WHERE lease_until > {NOW} ORDER BY name"
        return [(name, holder) for name, holder in self._fetch(query, None)]

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        async def call(connection: DatabaseConnection, is_retry: bool) -> list[LoggedEvent]:
            return await read_log(connection, self._sealed_logs, turn_id, after, limit, epoch)

        return await asyncio.to_thread(self._database.run, lambda connections: connections.run(call))

    def _fetch(self, query: str, *values: object) -> list[Row]:
        return self._database.run(lambda connections: connections.fetch(query, *values))


# Importing


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
        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            async with connection.transaction():
                for session in sessions:
                    await insert_session(connection, session)

        await self._connections.run(call)

    async def take_blob(self, session_id: str, blob: Blob) -> None:
        await self._connections.run(lambda connection, _: add_blobs(connection, session_id, [blob], _NO_LIMIT))

    async def take_turns(self, turns: Sequence[MovingTurn]) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            days = {day_of(turn.record.created_at) for turn in turns if turn.record.phase != "ended"}
            await ensure_partition(connection, *days)
            async with connection.transaction():
                for turn in turns:
                    await _take(connection, turn, self._seal_key)

        await self._connections.run(call)

    async def take_plugin_table(self, table: PluginTable) -> int:
        name = f"turnwire.{table.name}"
        values = ", ".join(f"${number}" for number in range(1, len(table.columns) + 1))
        insert = f"INSERT INTO {name} ({', '.join(table.columns)}) VALUES ({values}) ON CONFLICT DO NOTHING RETURNING 1"

        async def take(connection: SqlConnection) -> int:
            return sum([len(await connection.fetch(insert, *row)) for row in table.rows])

        # SQLite keeps the statement without `IF NOT EXISTS` and the schema.
        body = table.statement.partition("(")[2]
        await self._store.create_tables([f"CREATE TABLE IF NOT EXISTS {name} ({body}"])
        return await self._store.transaction(take)

    async def take_annotations(self, annotations: Sequence[Annotation]) -> None:
        for annotation in annotations:
            await self._connections.run(
                lambda connection, _, annotation=annotation: insert_annotation(connection, annotation, replaces=False)
            )

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
    new = NewTurn(record=record, opening=(), idempotency_key=turn.idempotency_key, fingerprint=turn.fingerprint)
    number: int | None = await connection.fetchval(
        _TURN,
        *turn_values(new, record),
        *(day, record.first_kept, ended, record.outcome, record.worker, record.epoch, record.last_position),
        *(record.started_at, record.waiting_until, record.ended_at),
        *(None if state is None else folded(state.text), turn.state),
    )
    if number is None:
        return  # An earlier attempt, whose reply was lost, has inserted it.
    for digest in turn.digests:
        await note_use(connection, record.session_id, record.id, digest)
    if ended:
        evidence = turn.seal
        if evidence is None:  # The log has not been sealed before.
            evidence = encode_seal(make_seal(record.id, turn.lines, turn.calls, key, now_ms()))
        query = "INSERT INTO turnwire.sealed_log (turn, body, calls, seal) VALUES ($1, $2, $3, $4)"
        calls = seal(turn.calls) if turn.calls else None
        await connection.execute(query, number, seal(turn.lines), calls, evidence)
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
        query = "INSERT INTO turnwire.call (turn, body) VALUES ($1, $2)"
        await connection.execute(query, number, turn.calls)
    if turn.command is not None:
        query = "INSERT INTO turnwire.command (turn_id, kind, reason) VALUES ($1, $2, $3)"
        await connection.execute(query, record.id, turn.command.kind, turn.command.reason)
