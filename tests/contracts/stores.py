"""The store backends of the contract suites: how each store is opened, crashed and opened again.

A `StoreBackend` holds the data of a store. It outlives the store objects that are opened on it, as a disk outlives
processes.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from tests.postgres_server import execute, kill_backends, run_aside, shared_databases
from turnwire.core.contracts.stores import JournalEntry, LogReader, Store
from turnwire.core.log.codec import LoggedEvent
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.memory import MemoryStore
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteArchive, SqliteStore

T = TypeVar("T")


class StoreBackend(Protocol):
    def __init__(self, folder: Path) -> None: ...

    async def open(self, **options: Any) -> Store: ...

    async def close(self) -> None:
        """Close every store that is still open."""
        ...

    def crash(self) -> None:
        """Simulate the loss of the process: committed data stays, nothing more is written, nobody is notified."""
        ...

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        """Return the log that a reader sees at this moment which shares nothing with the open store."""
        ...

    def recorded(self, turn_id: str) -> list[JournalEntry]:
        """Return the journal that such a reader sees."""
        ...

    def call_now(self, store: Store, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """Return what the open store answers at this moment: for use inside a callback."""
        ...


class MemoryBackend:
    def __init__(self, folder: Path) -> None:
        self._store: MemoryStore | None = None

    async def open(self, **options: Any) -> Store:
        self._store = MemoryStore(self._store, **options)
        return self._store

    @property
    def connection(self) -> sqlite3.Connection:
        assert self._store is not None
        return self._store.connection

    async def close(self) -> None:
        pass

    def crash(self) -> None:
        assert self._store is not None
        self._store._writer._waiting.clear()

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        return _read_now(MemoryStore(self._store), turn_id)

    def recorded(self, turn_id: str) -> list[JournalEntry]:
        return at_once(MemoryStore(self._store).journal(turn_id))

    def call_now(self, store: Store, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        return at_once(call(store))


class SqliteBackend:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store: SqliteStore | None = None

    async def open(self, **options: Any) -> Store:
        store = SqliteStore(self.folder, **options)
        await store.open()
        self._store = store
        return store

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = None

    def crash(self) -> None:
        store, self._store = self._store, None
        assert store is not None
        store._writer._waiting.clear()
        store._writer._committed = lambda group, error: None  # type: ignore[method-assign]
        for threads in (store._threads, store.readers, store._searchers):
            assert isinstance(threads, SqliteThreads)
            threads.shutdown()
        store._lock.release()

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        archive = SqliteArchive(self.folder)
        try:
            return _read_now(archive, turn_id)
        finally:
            archive.close()

    def recorded(self, turn_id: str) -> list[JournalEntry]:
        with closing(SqliteArchive(self.folder)) as archive:
            return at_once(archive.journal(turn_id))

    def call_now(self, store: Store, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        return at_once(call(store))


class PostgresBackend:
    """A database on the tests' own server. Other processes are other stores on it, and may be open at once."""

    def __init__(self, folder: Path) -> None:
        self._databases = shared_databases()
        self.database = self._databases.take()
        self.url = self._databases.server.url(self.database)
        self._stores: list[PostgresStore] = []
        # Kept until the end of the test, because the driver warns of connections that are dropped unclosed.
        self._crashed: list[PostgresStore] = []

    async def open(self, **options: Any) -> Store:
        store = PostgresStore(self.url, **options)
        await store.open()
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        self._stores.clear()
        self._databases.give_back(self.database)

    def crash(self) -> None:
        # Nobody is notified, and nothing is written once the server has ended the connections.
        for store in self._stores:
            hints = store._notifier._hints
            for task in (store._writer._task, store._notifier._task, hints and hints._task):
                if task:
                    task.cancel()
            store.connections.is_closed = True
        kill_backends(self.url)
        self._crashed += self._stores
        self._stores.clear()
        # A lease outlives its process for as long as the test takes; delete it before the next store opens.
        run_aside(execute(self.url, "DELETE FROM turnwire.worker"))

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        return self.call_now(PostgresStore(self.url), lambda store: store.read(turn_id, 0, 1_000_000))

    def recorded(self, turn_id: str) -> list[JournalEntry]:
        return self.call_now(PostgresStore(self.url), lambda store: store.journal(turn_id))

    def call_now(self, store: Store, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        # The store cannot answer while its event loop is blocked. It caches nothing, so another one can.
        async def call_another() -> T:
            other = PostgresStore(self.url)
            try:
                return await call(other)
            finally:
                await other.close()

        return run_aside(call_another())


STORES: dict[str, type[StoreBackend]] = {
    "memory": MemoryBackend,
    "postgres": PostgresBackend,
    "sqlite": SqliteBackend,
}


def _read_now(reader: LogReader, turn_id: str) -> list[LoggedEvent]:
    return at_once(reader.read(turn_id, 0, 1_000_000))


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, without an event loop: for use inside a callback."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    coroutine.close()
    raise AssertionError("the coroutine waited")


_PARAMS = [
    pytest.param(kind, id=name, marks=[pytest.mark.postgres] if name == "postgres" else [])
    for name, kind in STORES.items()
]


@pytest.fixture(params=_PARAMS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreBackend]:
    backend: StoreBackend = request.param(tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
async def store(backend: StoreBackend) -> Store:
    return await backend.open()
