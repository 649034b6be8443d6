"""The file under the index: many readers, one writer at a time, also across processes.

`turnwire index` may run beside a server. Whoever writes holds a lock on a file for the length of one
transaction; a reader waits for nobody and sees only what is committed.
"""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from turnwire.core.errors import StoreUnusableError
from turnwire.retrieval.index.schema import prepare

try:
    import fcntl
except ImportError:  # Without it (on Windows) SQLite's own lock is the only one.
    fcntl = None

_BUSY_SECONDS = 30


class IndexFile:
    def __init__(self, path: Path) -> None:
        """Raises StoreUnusableError."""
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
                prepare(self._writer)
                self._writer.execute("COMMIT")
        except (OSError, sqlite3.Error, ValueError) as error:
            # A transaction that is left open would keep everybody else from writing.
            self._opened.close()
            raise StoreUnusableError(str(path), str(error)) from error

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # The documents can be read again, so a commit need not wait for the disk.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA cache_size = -32000")
        # SQLite's own `lower` knows ASCII only.
        database.create_function("lowered", 1, str.lower, deterministic=True)
        return database

    @contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        try:
            database = self._readers.pop()
        except IndexError:
            database = self._connect()
            database.execute("PRAGMA query_only = ON")
        try:
            yield database
        finally:
            if self._is_closed:
                database.close()
            else:
                self._readers.append(database)

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """One transaction: all of it or nothing. Never to be held while files are read."""
        with self._writing, self._locked():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                self._writer.execute("UPDATE changes SET count = count + 1")
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite may have rolled it back itself, or left it open.
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
