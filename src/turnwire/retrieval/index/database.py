"""The SQLite file of the index: many readers, one writer at a time, also across processes.

`turnwire index` may run beside a server, so a writer holds a lock file for the length of one transaction. A reader
never waits, and sees committed data only.
"""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from turnwire.core.errors import StoreUnusableError
from turnwire.retrieval.index.terms import TOKENIZER

try:
    import fcntl
except ImportError:  # On Windows, SQLite's own lock is the only one.
    fcntl = None

VERSION = 2
_BUSY_SECONDS = 30

_TABLES = f"""
CREATE TABLE index_version(version INTEGER NOT NULL);
INSERT INTO index_version VALUES (0);

CREATE TABLE document_root(
    path TEXT PRIMARY KEY,
    is_own INTEGER NOT NULL          -- Turnwire's own documentation: it leaves when there is anything else
) WITHOUT ROWID;

CREATE TABLE document(
    id TEXT PRIMARY KEY,
    root TEXT,                       -- null for what was uploaded
    name TEXT NOT NULL,              -- the path below the root, or the name it was uploaded with
    folded_name TEXT NOT NULL,
    folded_title TEXT NOT NULL,
    owner TEXT,                      -- null for what everyone may read
    title TEXT NOT NULL,
    format TEXT NOT NULL,
    digest TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    characters INTEGER NOT NULL,
    pages INTEGER,
    passages INTEGER NOT NULL,
    indexed_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX document_by_root ON document(root);
CREATE INDEX document_by_owner ON document(owner) WHERE owner IS NOT NULL;

CREATE TABLE passage(
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: who holds an old id must not find another text
    document_id TEXT NOT NULL REFERENCES document ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    heading TEXT NOT NULL,
    text TEXT NOT NULL,              -- up to the next passage: all of them joined are the document
    char_start INTEGER NOT NULL,
    char_end INTEGER NOT NULL,
    line_start INTEGER NOT NULL,
    line_end INTEGER NOT NULL,
    page INTEGER
);
CREATE UNIQUE INDEX passage_by_document ON passage(document_id, ordinal);

CREATE VIRTUAL TABLE words USING fts5(heading, body, tokenize="{TOKENIZER}");

CREATE TRIGGER passage_removed AFTER DELETE ON passage BEGIN DELETE FROM words WHERE rowid = old.id; END;

CREATE TABLE passage_vector(
    passage_id INTEGER NOT NULL REFERENCES passage ON DELETE CASCADE,
    embedder TEXT NOT NULL,
    vector BLOB NOT NULL,            -- float32, of length one
    PRIMARY KEY(passage_id, embedder)
);
"""


class IndexFile:
    """The open file: a pool of read-only connections and one writer."""

    def __init__(self, path: Path) -> None:
        """Open the file, creating it if needed. Raise StoreUnusableError."""
        self.path = path
        self._writing = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._is_closed = False
        self._opened = ExitStack()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self._opened.enter_context(open(path.with_suffix(".lock"), "a"))  # noqa: SIM115
            self._writer = self._opened.enter_context(closing(self._connect()))
            with self._locked():
                self._writer.execute("PRAGMA journal_mode = WAL")
                self._writer.execute("BEGIN IMMEDIATE")
                _prepare(self._writer)
                self._writer.execute("COMMIT")
        except (OSError, sqlite3.Error, ValueError) as error:
            # An open transaction would block every other writer.
            self._opened.close()
            raise StoreUnusableError(str(path), str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # The documents can be indexed again, so a commit need not wait for the disk.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA cache_size = -32000")
        database.execute("PRAGMA foreign_keys = ON")
        return database

    def _connect_reader(self) -> sqlite3.Connection:
        database = self._connect()
        # Each occurrence of a word, to rank by the statistics of some passages only.
        database.execute("CREATE VIRTUAL TABLE temp.occurrence USING fts5vocab(main, words, instance)")
        database.execute("PRAGMA query_only = ON")
        return database

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Yield a read-only connection for exclusive use."""
        try:
            database = self._readers.pop()
        except IndexError:
            database = self._connect_reader()
        try:
            yield database
        finally:
            if self._is_closed:
                database.close()
            else:
                self._readers.append(database)

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """Yield the writer inside a transaction that commits at the end. Do not read files while it is open."""
        with self._writing, self._locked():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                self._writer.execute("UPDATE index_version SET version = version + 1")
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite may have rolled back by itself.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    @contextmanager
    def _locked(self) -> Generator[None]:
        if fcntl is None:
            yield
            return
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        self._is_closed = True
        while self._readers:
            self._readers.pop().close()
        with self._writing, self._locked():
            self._writer.close()
        self._opened.close()


def _prepare(database: sqlite3.Connection) -> None:
    """Create the tables of a new file. Raise ValueError for a file of another version."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    if version:
        raise ValueError(f"it has version {version}, this Turnwire knows {VERSION}; move it away and index again")
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")
