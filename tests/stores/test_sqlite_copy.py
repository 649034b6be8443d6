"""The copy of a data folder: a snapshot, whatever is written meanwhile."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.contracts.stores import SqliteBackend
from tests.contracts.turns import ended
from turnwire.stores.sqlite import transfer
from turnwire.stores.sqlite.schema import DATABASE_NAME
from turnwire.stores.sqlite.transfer import copy_folder


def titles(folder: Path) -> list[str | None]:
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        return [row[0] for row in connection.execute("SELECT title FROM session ORDER BY id")]


async def test_commits_during_a_copy_are_not_copied_and_do_not_restart_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PAGES", 1)
    data, backend = tmp_path / "data", SqliteBackend(tmp_path / "data")
    store = await backend.open()
    for _ in range(3):
        await ended(store)
    before = titles(data)
    steps: list[tuple[str, int, int]] = []
    # A writer like a server in another process.
    with closing(sqlite3.connect(data / DATABASE_NAME, isolation_level=None)) as server:

        def write_on(name: str, done: int, whole: int) -> None:
            steps.append((name, done, whole))
            assert len(steps) < 1_000
            server.execute("UPDATE session SET title = ?", (f"written at {len(steps)}",))

        _, files, turns = copy_folder(data, tmp_path / "copy", write_on)
    await backend.close()
    assert (files, turns) == (1, 3)
    assert titles(tmp_path / "copy") == before
    assert titles(data) == [f"written at {len(steps)}"] * 3
    pages = [done for _, done, _ in steps]
    assert pages == list(range(1, steps[-1][2] + 1))
    assert set((tmp_path / "copy").iterdir()) == {tmp_path / "copy" / DATABASE_NAME}
