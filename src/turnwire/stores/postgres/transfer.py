"""Access to a database from outside its servers: reading along, and the import of what another store has."""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Self

from turnwire.core.contracts.stores import SqlConnection, Worker
from turnwire.core.log.codec import LoggedEvent, now_ms
from turnwire.core.log.seals import make_seal
from turnwire.core.people.budget import day_of
from turnwire.settings import Settings
from turnwire.stores.archive import Archive
from turnwire.stores.blobs import note_use
from turnwire.stores.lines import SealedLogs, encode_seal, seal, to_entry_lines, to_lines
from turnwire.stores.postgres.claims import WORKERS
from turnwire.stores.postgres.connections import DatabaseConnection, Row
from turnwire.stores.postgres.rows import NOW, read_log
from turnwire.stores.postgres.schema import ensure_partition
from turnwire.stores.postgres.shared_database import SharedDatabase
from turnwire.stores.postgres.store import PostgresStore
from turnwire.stores.transfer import TURN_ROW, MovingTable, MovingTurn

_WHOLE_LOG = 2**30
_COLUMNS = (*TURN_ROW, "day", "sealed")
_TURN = f"""
    INSERT INTO turnwire.turn ({", ".join(_COLUMNS)})
    VALUES ({", ".join(f"${number}" for number in range(1, len(_COLUMNS) + 1))})
    ON CONFLICT (id) DO NOTHING RETURNING number
"""
_HEAD = """
    INSERT INTO turnwire.head (id, number, day, session_id, principal, phase, worker, epoch, last_position, started_at,
        waiting_until)
    SELECT id, number, day, session_id, principal, $2, worker, epoch, last_position, started_at, waiting_until
    FROM turnwire.turn WHERE number = $1
"""
_EVENT = (
    "INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body) VALUES ($1, $2, $3, $4, $5, $6)"
)
_CONFLICTS = {
    "session": "(id) DO NOTHING",  # Another session with the client's name for it is an error.
    "spending": "(principal, day) DO UPDATE SET tokens = greatest(spending.tokens, excluded.tokens)",
}


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

    @classmethod
    def build(cls, settings: Settings) -> Self:
        return cls(SharedDatabase.build(settings))

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


class PostgresImport(PostgresStore):
    """The `TransferTarget` of a database. A server may use it meanwhile."""

    async def missing_turns(self, turn_ids: Sequence[str]) -> set[str]:
        query = "SELECT id FROM turnwire.turn WHERE id = ANY($1)"
        return set(turn_ids) - {row[0] for row in await self.connections.fetch(query, list(turn_ids))}

    async def take_turns(self, turns: Sequence[MovingTurn]) -> None:
        async def call(connection: DatabaseConnection, is_retry: bool) -> None:
            days = {day_of(turn.row["created_at"]) for turn in turns if turn.phase != "ended"}
            await ensure_partition(connection, *days)
            async with connection.transaction():
                for turn in turns:
                    await _take(connection, turn, self._seal_key)

        await self.connections.run(call)

    async def take_rows(self, table: MovingTable, rows: Sequence[Row]) -> int:
        name, columns = f"turnwire.{table.name}", ", ".join(table.columns)
        values = ", ".join(f"${number}" for number in range(1, len(table.columns) + 1))
        conflict = _CONFLICTS.get(table.name, "DO NOTHING")
        insert = f"INSERT INTO {name} ({columns}) VALUES ({values}) ON CONFLICT {conflict} RETURNING 1"

        async def take(connection: SqlConnection) -> int:
            return sum([len(await connection.fetch(insert, *row)) for row in rows])

        if table.statement is not None:
            # SQLite keeps the statement without `IF NOT EXISTS` and the schema.
            body = table.statement.partition("(")[2]
            await self.create_tables([f"CREATE TABLE IF NOT EXISTS {name} ({body}"])
        return await self.transaction(take)

    async def lines_of(self, turn_id: str) -> tuple[bytes, bytes]:
        query = "SELECT first_kept FROM turnwire.turn WHERE id = $1"
        ((first_kept,),) = await self.connections.fetch(query, turn_id)
        log = await self.read(turn_id, first_kept - 1, _WHOLE_LOG)
        return to_lines(log), to_entry_lines(await self.journal(turn_id))


async def _take(connection: DatabaseConnection, turn: MovingTurn, key: bytes | None) -> None:
    row, has_ended = turn.row, turn.phase == "ended"
    day = day_of(row["created_at"])
    number: int | None = await connection.fetchval(_TURN, *row.values(), day, has_ended)
    if number is None:
        return  # An earlier attempt, whose reply was lost, has inserted it.
    for digest in turn.digests:
        await note_use(connection, row["session_id"], row["id"], digest)
    if has_ended:
        evidence = turn.seal
        if evidence is None:  # The log has not been sealed before.
            evidence = encode_seal(make_seal(row["id"], turn.lines, turn.calls, key, now_ms()))
        query = "INSERT INTO turnwire.sealed_log (turn, body, calls, seal) VALUES ($1, $2, $3, $4)"
        calls = seal(turn.calls) if turn.calls else None
        await connection.execute(query, number, seal(turn.lines), calls, evidence)
    else:
        await _take_unfinished(connection, turn, number, day)


async def _take_unfinished(connection: DatabaseConnection, turn: MovingTurn, number: int, day: int) -> None:
    await connection.execute(_HEAD, number, turn.phase)
    position = turn.row["first_kept"]
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
        await connection.execute(query, turn.row["id"], *turn.command)
