"""The tables that are the same in both databases, in PostgreSQL's form. They refer to `turn`, which is not."""

SHARED_TABLES = """
    CREATE TABLE turnwire.session (
        id text COLLATE "C" PRIMARY KEY,
        principal text COLLATE "C" NOT NULL,
        external_id text COLLATE "C",
        title text,
        folded_title text,               -- the title as it is searched: in lower case, in every script
        created_at bigint NOT NULL,
        updated_at bigint NOT NULL,
        UNIQUE (principal, external_id)
    );
    CREATE INDEX session_by_activity ON turnwire.session (principal, updated_at, id);

    -- The tokens that each principal used on each day, counted from 1970. They outlive their turns.
    CREATE TABLE turnwire.spending (
        principal text COLLATE "C" NOT NULL,
        day integer NOT NULL,
        tokens bigint NOT NULL,
        PRIMARY KEY (principal, day)
    );

    -- The notices about turns that are still to be delivered, and when that is tried next.
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

    -- Files of messages, once in each session.
    CREATE TABLE turnwire.blob (
        number bigserial PRIMARY KEY,
        session_id text COLLATE "C" NOT NULL REFERENCES turnwire.session ON DELETE CASCADE,
        digest text COLLATE "C" NOT NULL,
        media_type text NOT NULL,
        name text,
        size bigint NOT NULL,
        used_at bigint NOT NULL,
        body bytea NOT NULL,
        UNIQUE (session_id, digest)
    );
    CREATE INDEX blob_by_use ON turnwire.blob (used_at);

    -- The turns that need them.
    CREATE TABLE turnwire.blob_use (
        session_id text COLLATE "C" NOT NULL,
        digest text COLLATE "C" NOT NULL,
        turn_id text COLLATE "C" NOT NULL REFERENCES turnwire.turn (id) ON DELETE CASCADE,
        PRIMARY KEY (session_id, digest, turn_id)
    );
    CREATE INDEX blob_use_by_turn ON turnwire.blob_use (turn_id);
"""
