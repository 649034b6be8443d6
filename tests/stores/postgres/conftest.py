"""A database, and as many processes' stores on it as a test wants."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.stores import PostgresPlace
from turnwire.stores.postgres import PostgresStore


class Processes(PostgresPlace):
    """Each store that is opened here is a process of its own, as far as the stores can tell."""

    async def join(self, **options: Any) -> PostgresStore:
        store = await self.open(**options)
        assert isinstance(store, PostgresStore)
        return store

    def ask(self, query: str, *values: object) -> Any:
        """One value, asked aside."""

        async def ask(store: Any) -> Any:
            return await store.connections.fetchval(query, *values)

        return self.now(PostgresStore(self.url), ask)


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    await processes.close()


@pytest.fixture
async def store(processes: Processes) -> PostgresStore:
    return await processes.join()


@pytest.fixture
async def other(processes: Processes) -> PostgresStore:
    """Another process."""
    return await processes.join()
