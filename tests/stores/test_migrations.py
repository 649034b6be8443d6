"""Migrations of both databases, with a made-up one: data is kept, a newer version is refused."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import Struct

from tests.contracts.turns import ended, types, whole_log
from tests.postgres_server import execute, run_aside, shared_databases
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import StoreUnusableError
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.postgres import schema as postgres_schema
from turnwire.stores.postgres.shared_database import SharedDatabase
from turnwire.stores.postgres.transfer import PostgresArchive
from turnwire.stores.sqlite import SqliteArchive, SqliteStore
from turnwire.stores.sqlite import schema as sqlite_schema
from turnwire.stores.sqlite.schema import DATABASE_NAME


class Migrated(Struct):
    """A database that is migrated: its schema, its stores, its archive, and a way to change it from outside."""

    schema: ModuleType
    prefix: str
    open: Callable[[], Awaitable[Any]]
    archive: Callable[[], Any]
    run: Callable[[str], None]

    @property
    def set_version(self) -> str:
        return "UPDATE turnwire.schema_version SET version = {}" if self.prefix else "PRAGMA user_version = {}"


async def _opened(store: Any) -> Store:
    await store.open()
    return store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Migrated]:
    if request.param == "sqlite":

        def run(statement: str) -> None:
            with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection:
                connection.execute(statement)

        yield Migrated(sqlite_schema, "", lambda: _opened(SqliteStore(tmp_path)), lambda: SqliteArchive(tmp_path), run)
        return
    server = shared_databases().server
    url = server.url(await asyncio.to_thread(server.new_database))
    yield Migrated(
        postgres_schema,
        "turnwire.",
        lambda: _opened(PostgresStore(url)),
        lambda: PostgresArchive(SharedDatabase(url)),
        lambda statement: run_aside(execute(url, statement)),
    )


async def test_migration_keeps_the_data_and_runs_once(database: Migrated, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await database.open()
    record = await ended(store)
    await store.close()
    table = f"{database.prefix}made_up"
    script = f"CREATE TABLE {table} AS SELECT id FROM {database.prefix}turn"
    monkeypatch.setattr(database.schema, "MIGRATIONS", (script, f"ALTER TABLE {table} ADD COLUMN colour text"))
    for _ in range(2):
        store = await database.open()
        assert types(await whole_log(store, record.id))[-1] == "done"
        await store.close()
    database.run(f"INSERT INTO {table} (id, colour) VALUES ('x', 'red')")


async def test_failed_migration_changes_nothing(database: Migrated, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await database.open()
    record = await ended(store)
    await store.close()
    script = f"DROP TABLE {database.prefix}api_key; SELECT * FROM {database.prefix}no_such_table"
    with monkeypatch.context() as broken:
        broken.setattr(database.schema, "MIGRATIONS", (script,))
        with pytest.raises(StoreUnusableError):
            await database.open()
    store = await database.open()
    assert types(await whole_log(store, record.id))[-1] == "done"
    assert await store.list_keys() == []
    await store.close()


async def test_database_of_a_newer_version_is_refused(database: Migrated) -> None:
    await (await database.open()).close()
    newer = database.schema.newest_version() + 1
    database.run(database.set_version.format(newer))
    with pytest.raises(StoreUnusableError, match=rf"newer Turnwire \(schema {newer}, this one knows {newer - 1}\)"):
        await database.open()
    with pytest.raises(StoreUnusableError, match="newer Turnwire"):
        await asyncio.to_thread(database.archive)
