"""Fixtures: a database, and the stores of several processes on it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.stores import PostgresBackend
from turnwire.stores.postgres import PostgresStore


class Processes(PostgresBackend):
    """A backend whose stores each stand for a process."""

    async def join(self, **options: Any) -> PostgresStore:
        store = await self.open(**options)
        assert isinstance(store, PostgresStore)
        return store

    def fetchval(self, query: str, *values: object) -> Any:
        """Return one value, fetched over another connection while this event loop is blocked."""

        async def fetch(store: Any) -> Any:
            rows = await store.connections.fetch(query, *values)
            return rows[0][0] if rows else None

        return self.call_now(PostgresStore(self.url), fetch)


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
    """The store of another process."""
    return await processes.join()
