"""Every store there is, and how each is opened, lost and opened again.

A `Place` is where a store keeps its data. It outlives the store objects that are opened in it, as a
disk outlives processes.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from tests.postgres_server import execute, kill_backends, run_aside, shared_databases
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import LogReader, Store
from turnwire.stores.memory import MemoryStore, MemoryTables
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteArchive, SqliteStore

T = TypeVar("T")


class Place(Protocol):
    def __init__(self, folder: Path) -> None: ...

    async def open(self, **options: Any) -> Store: ...

    async def close(self) -> None:
        """Closes whatever is still open here."""
        ...

    def crash(self) -> None:
        """The process is gone: what was committed stays, nothing more is written, nobody is told."""
        ...

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        """What a reader that shares nothing with the open store finds, at this very moment."""
        ...

    def now(self, store: Store, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        """What the open store answers at this very moment: for use inside a callback."""
        ...


class MemoryPlace:
    def __init__(self, folder: Path) -> None:
        self.tables = MemoryTables()

    async def open(self, **options: Any) -> Store:
        return MemoryStore(self.tables, **options)

    async def close(self) -> None:
        pass

    def crash(self) -> None:
        pass

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        return _read_now(MemoryStore(self.tables), turn_id)

    def now(self, store: Store, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        return at_once(ask(store))


class SqlitePlace:
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
        store._threads.shutdown()
        store.readers.shutdown()
        store._lock.release()

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        archive = SqliteArchive(self.folder)
        try:
            return _read_now(archive, turn_id)
        finally:
            archive.close()

    def now(self, store: Store, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        return at_once(ask(store))


class PostgresPlace:
    """A database of the tests' own server. Other processes are other stores here, and may be open at once."""

    def __init__(self, folder: Path) -> None:
        self._databases = shared_databases()
        self.database = self._databases.take()
        self.url = self._databases.server.url(self.database)
        self._stores: list[PostgresStore] = []

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
        # Nobody is told, and nothing is written once the server has ended the connections.
        for store in self._stores:
            hints = store._notifier._hints
            for task in (store._writer._task, store._notifier._task, hints and hints._task):
                if task:
                    task.cancel()
            store.connections.is_closed = True
        kill_backends(self.url)
        self._stores.clear()
        # A lease outlives its process for a while, here as long as the test takes. It is over when the next one opens.
        run_aside(execute(self.url, "DELETE FROM turnwire.worker"))

    def committed(self, turn_id: str) -> list[LoggedEvent]:
        return self.now(PostgresStore(self.url), lambda store: store.read(turn_id, 0, 1_000_000))

    def now(self, store: Store, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        # The store cannot answer while its event loop stands still. It keeps nothing to itself, so another one can.
        async def ask_another() -> T:
            other = PostgresStore(self.url)
            try:
                return await ask(other)
            finally:
                await other.close()

        return run_aside(ask_another())


STORES: dict[str, type[Place]] = {"memory": MemoryPlace, "postgres": PostgresPlace, "sqlite": SqlitePlace}


def _read_now(reader: LogReader, turn_id: str) -> list[LoggedEvent]:
    return at_once(reader.read(turn_id, 0, 1_000_000))


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, without an event loop: for use inside a callback."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    coroutine.close()
    raise AssertionError("it waited")


@pytest.fixture(params=STORES.values(), ids=list(STORES))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place: Place = request.param(tmp_path)
    yield place
    await place.close()


@pytest.fixture
async def store(place: Place) -> Store:
    return await place.open()
