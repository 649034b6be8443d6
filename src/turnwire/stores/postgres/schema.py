"""The tables with their migrations, the partitions of events, and the advisory locks."""

from contextlib import suppress
from datetime import UTC, datetime

from turnwire.core.budget import DAY_MS
from turnwire.core.errors import StoreUnusableError
from turnwire.stores.postgres.connections import DatabaseConnection, LockNotAvailable

# Advisory locks share one number space with everything else in the database, so these numbers are unlikely ones.
MIGRATION_LOCK = 0x7475726E_00000001
UPKEEP_LOCK = 0x7475726E_00000002

# Each entry migrates from version n to n + 1. A released entry is never changed.
MIGRATIONS = (
    """
    -- A process that runs turns. Its lease is by this server's clock, in ms.
    CREATE TABLE turnwire.worker (
        id text COLLATE "C" PRIMARY KEY,
        name text NOT NULL,
        started_at bigint NOT NULL,
        lease_until bigint NOT NULL,
        draining boolean NOT NULL
    );

    CREATE TABLE turnwire.session (
        id text COLLATE "C" PRIMARY KEY,
        principal text COLLATE "C" NOT NULL,
        external_id text COLLATE "C",
        title text,
        folded_title text,               -- what a search looks in: lower case does not depend on a locale
        created_at bigint NOT NULL,
        updated_at bigint NOT NULL,
        UNIQUE (principal, external_id)
    );
    CREATE INDEX session_by_activity ON turnwire.session (principal, updated_at, id);

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
    CREATE TABLE turnwire.checkpoint (
        turn_id text COLLATE "C" PRIMARY KEY REFERENCES turnwire.head ON DELETE CASCADE,
        body bytea NOT NULL
    );
    CREATE TABLE turnwire.command (
        turn_id text COLLATE "C" PRIMARY KEY REFERENCES turnwire.head ON DELETE CASCADE,
        kind text NOT NULL,
        reason text NOT NULL
    );
    CREATE TABLE turnwire.attendance (
        turn_id text COLLATE "C" NOT NULL REFERENCES turnwire.head ON DELETE CASCADE,
        worker text COLLATE "C" NOT NULL,
        PRIMARY KEY (turn_id, worker)
    );

    -- A row is what one turn had to say in one commit. All rows of a turn are in the partition of its day.
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

    CREATE TABLE turnwire.sealed_log (
        turn bigint PRIMARY KEY,
        body bytea NOT NULL
    );
    ALTER TABLE turnwire.sealed_log ALTER COLUMN body SET STORAGE EXTERNAL;

    -- What each principal used on each day, counted from 1970. It outlives the turns that it comes from.
    CREATE TABLE turnwire.spending (
        principal text COLLATE "C" NOT NULL,
        day integer NOT NULL,
        tokens bigint NOT NULL,
        PRIMARY KEY (principal, day)
    ) WITH (fillfactor = 70);

    -- Ended turns of which somebody outside is yet to be told, and when that may be tried next.
    CREATE TABLE turnwire.outbox (
        turn_id text COLLATE "C" PRIMARY KEY REFERENCES turnwire.turn (id) ON DELETE CASCADE,
        due_at bigint NOT NULL,
        attempts integer NOT NULL
    );
    CREATE INDEX outbox_by_time ON turnwire.outbox (due_at);

    CREATE TABLE turnwire.api_key (
        id text COLLATE "C" PRIMARY KEY,
        digest text NOT NULL,
        principal text NOT NULL,
        scopes text NOT NULL,
        created_at bigint NOT NULL,
        expires_at bigint,
        revoked_at bigint
    );
    """,
    """
    -- The journal of a turn's calls, until the turn is sealed. A row has the entries of one commit.
    CREATE TABLE turnwire.recorded_call (
        id bigserial PRIMARY KEY,
        turn bigint NOT NULL,
        body bytea NOT NULL
    );
    CREATE INDEX recorded_call_by_turn ON turnwire.recorded_call (turn, id);

    ALTER TABLE turnwire.sealed_log ADD COLUMN calls bytea;
    ALTER TABLE turnwire.sealed_log ALTER COLUMN calls SET STORAGE EXTERNAL;
    """,
    """
    -- Values beside the logs, such as feedback and share links.
    CREATE TABLE turnwire.annotation (
        kind text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        principal text COLLATE "C" NOT NULL,
        at bigint NOT NULL,
        value text NOT NULL,
        session_id text COLLATE "C" REFERENCES turnwire.session ON DELETE CASCADE,
        turn_id text COLLATE "C" REFERENCES turnwire.turn (id) ON DELETE CASCADE,
        PRIMARY KEY (kind, key)
    );
    CREATE INDEX annotation_by_principal ON turnwire.annotation (principal, kind, key);
    CREATE INDEX annotation_by_session ON turnwire.annotation (session_id) WHERE session_id IS NOT NULL;
    CREATE INDEX annotation_by_turn ON turnwire.annotation (turn_id) WHERE turn_id IS NOT NULL;
    """,
    """
    -- The evidence against tampering; logs that were sealed before have none.
    ALTER TABLE turnwire.sealed_log ADD COLUMN seal bytea;
    """,
)


async def lock_principal(connection: DatabaseConnection, principal: str) -> None:
    """Keep others from changing this principal's sessions and turns until the transaction is over."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('turnwire ' || $1, 0))", principal)


async def migrate(connection: DatabaseConnection, location: str) -> None:
    """Bring the database up to date; of many processes that start at once, one does it. Raises StoreUnusableError."""
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
        version = 0
        if await connection.fetchval("SELECT to_regclass('turnwire.schema_version')::text") is not None:
            version: int = await connection.fetchval("SELECT version FROM turnwire.schema_version")
        if version > len(MIGRATIONS):
            raise StoreUnusableError(
                location,
                f"it was written by a newer Turnwire (schema {version}, this one knows {len(MIGRATIONS)}); "
                "upgrade turnwire, or give another database",
            )
        if version == 0:
            await connection.execute(
                "CREATE SCHEMA IF NOT EXISTS turnwire;"
                "CREATE TABLE turnwire.schema_version (version integer NOT NULL);"
                "INSERT INTO turnwire.schema_version VALUES (0)"
            )
        for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
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
            continue  # Nobody has to wait for a lock to find that out.
        # A reader may hold the table; then the next call drops it.
        with suppress(LockNotAvailable):
            async with connection.transaction():
                # With the lock, no turn of that day can be accepted between the check and the drop. Dropping locks the
                # parent too. Whoever reads or writes meanwhile waits behind these locks, so they are hardly waited for.
                await connection.execute(f"SET LOCAL lock_timeout = '20ms'; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
                if not await connection.fetchval(_IS_NEEDED, day):
                    await connection.execute(f"DROP TABLE {name}")
                    dropped += 1
    return dropped


_IS_NEEDED = "SELECT EXISTS (SELECT 1 FROM turnwire.turn WHERE day = $1 AND NOT sealed)"


def _day_in(name: str) -> int:
    midnight = datetime.strptime(name.rpartition("_")[2].strip('"'), "%Y%m%d").replace(tzinfo=UTC)
    return int(midnight.timestamp() * 1000) // DAY_MS
