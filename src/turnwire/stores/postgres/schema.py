"""The tables, their version and migrations, the partitions of events, and the advisory locks."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

from turnwire.core.errors import StoreUnusableError
from turnwire.core.log.codec import now_ms
from turnwire.core.people.budget import DAY_MS, day_of
from turnwire.stores.postgres.connections import (
    RETRY,
    ConnectionPool,
    DatabaseConnection,
    LockNotAvailable,
    close_quietly,
    is_transient,
    unusable,
)
from turnwire.stores.schema import SHARED_TABLES

_OPEN_SECONDS = 3.0

# Advisory locks share one number space with everything else in the database, so these numbers are unlikely ones.
MIGRATION_LOCK = 0x7475726E_00000001
UPKEEP_LOCK = 0x7475726E_00000002

# The tables of version 1. Each migration leads from version n to n + 1. What is released is never changed.
TABLES = f"""
    -- A process that runs turns. Its lease is by this server's clock, in ms.
    CREATE TABLE turnwire.worker (
        id text COLLATE "C" PRIMARY KEY,
        name text NOT NULL,
        started_at bigint NOT NULL,
        lease_until bigint NOT NULL,
        draining boolean NOT NULL
    );

    -- What does not change while a turn runs, and how it ended.
    CREATE TABLE turnwire.turn (
        number bigserial PRIMARY KEY,
        id text COLLATE "C" NOT NULL UNIQUE,
        day integer NOT NULL,            -- that it was accepted on: where its events are
        session_id text COLLATE "C" NOT NULL,
        principal text COLLATE "C" NOT NULL,
        agent text NOT NULL,
        message text NOT NULL,
        folded_message text NOT NULL,
        channel text NOT NULL,
        external_id text COLLATE "C",
        parent_turn_id text COLLATE "C",
        idempotency_key text COLLATE "C",
        fingerprint text NOT NULL,
        options text NOT NULL,
        attachments text,
        disconnect_grace double precision,
        created_at bigint NOT NULL,
        first_kept integer NOT NULL DEFAULT 1,
        sealed boolean NOT NULL DEFAULT false,
        outcome text,
        worker text COLLATE "C",
        epoch integer NOT NULL DEFAULT 0,
        last_position integer NOT NULL DEFAULT 0,
        started_at bigint,
        waiting_until bigint,
        ended_at bigint,
        folded_answer text,
        state bytea,
        UNIQUE (principal, external_id),
        UNIQUE (principal, idempotency_key)
    );
    CREATE INDEX turn_by_session ON turnwire.turn (session_id, number);
    CREATE INDEX turn_by_principal ON turnwire.turn (principal, number);
    CREATE INDEX turn_unsealed ON turnwire.turn (day, number) WHERE NOT sealed;
    CREATE INDEX turn_by_end ON turnwire.turn (ended_at) WHERE first_kept = 1;

    -- Where the log of a turn that has not ended stands, and who may write to it. It is written with every commit,
    -- so it is narrow, and has room on its pages for the next version of a row.
    CREATE TABLE turnwire.head (
        id text COLLATE "C" PRIMARY KEY,
        number bigint NOT NULL,
        day integer NOT NULL,
        session_id text COLLATE "C" NOT NULL,
        principal text COLLATE "C" NOT NULL,
        phase text COLLATE "C" NOT NULL,
        worker text COLLATE "C",
        claim text COLLATE "C",          -- the attempt that claimed it, which may have to be repeated
        epoch integer NOT NULL,
        last_position integer NOT NULL,
        started_at bigint,
        waiting_until bigint
    ) WITH (fillfactor = 50);
    CREATE INDEX head_by_session ON turnwire.head (session_id, number);
    CREATE INDEX head_by_principal ON turnwire.head (principal);
    CREATE INDEX head_queued ON turnwire.head (number) WHERE phase = 'queued';

    -- What belongs to a turn that has not ended goes with its head.
    CREATE TABLE turnwire.command (
        turn_id text COLLATE "C" PRIMARY KEY REFERENCES turnwire.head ON DELETE CASCADE,
        kind text NOT NULL,
        reason text NOT NULL
    );
    -- The processes in which a turn has readers.
    CREATE TABLE turnwire.reader (
        turn_id text COLLATE "C" NOT NULL REFERENCES turnwire.head ON DELETE CASCADE,
        worker text COLLATE "C" NOT NULL,
        PRIMARY KEY (turn_id, worker)
    );

    -- A row has the events of one turn in one commit. All rows of a turn are in the partition of its day.
    CREATE TABLE turnwire.event (
        day integer NOT NULL,
        turn bigint NOT NULL,
        last_position integer NOT NULL,
        first_position integer NOT NULL,
        epoch integer NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (day, turn, last_position)
    ) PARTITION BY LIST (day);
    ALTER TABLE turnwire.event ALTER COLUMN body SET STORAGE EXTERNAL;

    -- The journal entries of a turn, until it is sealed. A row has the entries of one commit.
    CREATE TABLE turnwire.call (
        id bigserial PRIMARY KEY,
        turn bigint NOT NULL,
        body bytea NOT NULL
    );
    CREATE INDEX call_by_turn ON turnwire.call (turn, id);

    -- The events and calls of an ended turn, compressed, and the evidence against tampering.
    CREATE TABLE turnwire.sealed_log (
        turn bigint PRIMARY KEY,
        body bytea NOT NULL,
        calls bytea,
        seal bytea NOT NULL
    );
    ALTER TABLE turnwire.sealed_log ALTER COLUMN body SET STORAGE EXTERNAL;
    ALTER TABLE turnwire.sealed_log ALTER COLUMN calls SET STORAGE EXTERNAL;

    -- Named leases, such as those of extensions. The epoch grows with every holder.
    CREATE TABLE turnwire.lease (
        name text COLLATE "C" PRIMARY KEY,
        holder text NOT NULL,
        epoch bigint NOT NULL,
        lease_until bigint NOT NULL
    );
    CREATE TABLE turnwire.secret (
        name text COLLATE "C" PRIMARY KEY,
        value bytea NOT NULL
    );
    {SHARED_TABLES}
    ALTER TABLE turnwire.blob ALTER COLUMN body SET STORAGE EXTERNAL;
    ALTER TABLE turnwire.spending SET (fillfactor = 70);
"""
MIGRATIONS: tuple[str, ...] = ()


Prepare = Callable[[DatabaseConnection, str], Awaitable[None]]


async def open_database(connections: ConnectionPool, prepare: Prepare | None = None) -> None:
    """Connect once and bring the tables up to date, or do what `prepare` does instead. Raises StoreUnusableError."""
    end = time.monotonic() + _OPEN_SECONDS
    failures = 0
    location = connections.location
    while True:
        try:
            connection = await connections.connect()
            try:
                await (prepare or _prepare)(connection, location)
            finally:
                await close_quietly(connection)
            return
        except StoreUnusableError:
            raise
        except Exception as error:
            if not is_transient(error) or time.monotonic() > end:
                raise unusable(location, error) from error
        failures += 1
        await RETRY.wait(failures)


async def _prepare(connection: DatabaseConnection, location: str) -> None:
    await migrate(connection, location)
    today = day_of(now_ms())
    await ensure_partition(connection, today, today + 1)


def newest_version() -> int:
    """Return the version of the schema that this code reads and writes."""
    return 1 + len(MIGRATIONS)


async def check_version(connection: DatabaseConnection, location: str) -> None:
    """Check that the tables are those of this version, and change nothing. Raises StoreUnusableError."""
    if await connection.fetchval("SELECT to_regclass('turnwire.schema_version')::text") is None:
        raise StoreUnusableError(location, "there are no logs in it; start a server with this database first")
    version: int = await connection.fetchval("SELECT version FROM turnwire.schema_version")
    if version < newest_version():
        raise StoreUnusableError(
            location, f"its schema is {version}, this Turnwire needs {newest_version()}; start a server of this version"
        )
    if version > newest_version():
        raise _newer(location, version)


def _newer(location: str, version: int) -> StoreUnusableError:
    return StoreUnusableError(
        location,
        f"it was written by a newer Turnwire (schema {version}, this one knows {newest_version()}); "
        "upgrade turnwire, or give another database",
    )


async def migrate(connection: DatabaseConnection, location: str) -> None:
    """Bring the database up to date; of many processes that start at once, one does it. Raises StoreUnusableError."""
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        version = 0
        if await connection.fetchval("SELECT to_regclass('turnwire.schema_version')::text") is not None:
            version: int = await connection.fetchval("SELECT version FROM turnwire.schema_version")
        if version > newest_version():
            raise _newer(location, version)
        if version == 0:
            await connection.execute(
                "CREATE SCHEMA IF NOT EXISTS turnwire;"
                "CREATE TABLE turnwire.schema_version (version integer NOT NULL);"
                "INSERT INTO turnwire.schema_version VALUES (0)"
            )
        for number, script in enumerate((TABLES, *MIGRATIONS)[version:], start=version + 1):
            await connection.execute(f"{script}; UPDATE turnwire.schema_version SET version = {number}")


async def ensure_partition(connection: DatabaseConnection, *days: int) -> None:
    """Create the missing partitions of these days."""
    missing = [day for day in days if not await _exists(connection, day)]
    if not missing:
        return
    async with connection.transaction():
        # Two processes that create the same table at once would both fail.
        await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        for day in missing:
            # Rows of up to a page stay uncompressed in the table: compressing each costs more than it saves.
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS {partition_name(day)} PARTITION OF turnwire.event FOR VALUES IN ({day})"
                " WITH (toast_tuple_target = 8160)"
            )


async def _exists(connection: DatabaseConnection, day: int) -> bool:
    return await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", partition_name(day))


def partition_name(day: int) -> str:
    return f"turnwire.event_{datetime.fromtimestamp(day * DAY_MS / 1000, UTC):%Y%m%d}"


async def drop_partitions(connection: DatabaseConnection, before: int) -> int:
    """Drop the partitions of earlier days that no turn needs any more. Return their number."""
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'turnwire.event'::regclass"
    dropped = 0
    for (name,) in await connection.fetch(query):
        day = _day_in(name)
        if day >= before:
            continue
        if await connection.fetchval(_IS_NEEDED, day):
            continue  # Found out without a lock, for which others would have to wait.
        # A reader may hold the table; then the next call drops it.
        with suppress(LockNotAvailable):
            async with connection.transaction():
                # With the lock, no turn of that day can be accepted between the check and the drop. Dropping locks the
                # parent too. Readers and writers queue up behind a lock that is waited for, so the wait is short.
                await connection.execute(f"SET LOCAL lock_timeout = '20ms'; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
                if not await connection.fetchval(_IS_NEEDED, day):
                    await connection.execute(f"DROP TABLE {name}")
                    dropped += 1
    return dropped


_IS_NEEDED = "SELECT EXISTS (SELECT 1 FROM turnwire.turn WHERE day = $1 AND NOT sealed)"


def _day_in(name: str) -> int:
    midnight = datetime.strptime(name.rpartition("_")[2].strip('"'), "%Y%m%d").replace(tzinfo=UTC)
    return int(midnight.timestamp() * 1000) // DAY_MS
