"""Upgrades: this version opens the databases that older versions have written, reads them and continues their turns."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.faults import agents
from tests.postgres_server import execute, shared_databases
from tests.released.old_databases import WORDS, schemas
from tests.serving import Served, quick_settings, serving
from turnwire import Turnwire
from turnwire.stores.postgres import schema as postgres_schema
from turnwire.stores.sqlite import schema as sqlite_schema
from turnwire.stores.sqlite.schema import DATABASE_NAME

# A turn may be continued years after it was begun.
_CENTURY = 3_000_000_000
_SQLITE = [pytest.param(path, id=path.stem) for path in schemas("sqlite").values()]
_POSTGRES = [pytest.param(path, id=path.stem) for path in schemas("postgres").values()]


@pytest.mark.parametrize("dump", _SQLITE)
async def test_sqlite_database_of_an_older_version_is_read_and_its_turns_are_continued(
    dump: Path, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection:
        connection.executescript(dump.read_text())
    await _check_turns(Turnwire(agents=_agents(), settings=_settings(tmp_path), extensions=[]))


@pytest.mark.postgres
@pytest.mark.parametrize("dump", _POSTGRES)
async def test_postgres_database_of_an_older_version_is_read_and_its_turns_are_continued(
    dump: Path, tmp_path: Path
) -> None:
    server = shared_databases().server
    url = server.url(await asyncio.to_thread(server.new_database))
    await execute(url, dump.read_text())
    settings = _settings(tmp_path, database_url=url)
    await _check_turns(Turnwire(agents=_agents(), store="postgres", settings=settings, extensions=[]))


def test_schemas_before_this_one_have_a_database() -> None:
    # Schema 5 of PostgreSQL was never on the main branch, and the first ones of SQLite had no server to be killed.
    assert set(schemas("sqlite")) >= {*range(3, len(sqlite_schema.MIGRATIONS))}
    assert set(schemas("postgres")) >= {*range(1, len(postgres_schema.MIGRATIONS))} - {5}


def _agents() -> dict[str, Any]:
    return {name: getattr(agents, name) for name in agents.ALL}


def _settings(folder: Path, **settings: Any) -> Any:
    return quick_settings(folder, turn_timeout=_CENTURY, **settings)


async def _check_turns(turnwire: Turnwire) -> None:
    async with serving(turnwire) as server:
        assert await _answers(server, "ended") == [("completed", WORDS["ended"])]
        # The worker of these was killed: one agent continues, the other one cannot.
        assert await _answers(server, "continued") == [("completed", WORDS["continued"])]
        (outcome, words), queued = await _answers(server, "lost")
        assert (outcome, words < WORDS["lost"]) == ("interrupted", True)
        assert queued == ("completed", WORDS["queued"])
        (waiting,) = await _turns(server, "waiting")
        answer = await server.http.post(f"/v1/turns/{waiting}/approvals/c1", json={"approved": True})
        assert answer.status_code == 200, answer.text
        assert await _answers(server, "waiting") == [("completed", WORDS["waiting"])]
        # The old sessions go on.
        async with server.stream(
            "POST", "/chat/stream", json={"message": "3 0", "agent": "counting", "session_id": "ended"}
        ) as stream:
            await stream.rest()
        assert await _answers(server, "ended") == [("completed", WORDS["ended"]), ("completed", 3)]


async def _turns(server: Served, session: str) -> list[str]:
    answer = await server.http.get(f"/v1/sessions/{session}")
    assert answer.status_code == 200, answer.text
    return [turn["turn_id"] for turn in answer.json()["turns"]]


async def _answers(server: Served, session: str) -> list[tuple[str, int]]:
    """Wait for the ends of a session's turns. Return their outcomes, and the number of words of their answers."""
    return [await _answer(server, turn_id) for turn_id in await _turns(server, session)]


async def _answer(server: Served, turn_id: str) -> tuple[str, int]:
    frames = await server.whole(turn_id)
    assert [frame.position for frame in frames] == [*range(1, len(frames) + 1)]
    assert [frame.type for frame in frames].count("done") == 1
    kept: list[tuple[int, str]] = []
    for frame in frames:
        if frame.type == "restart":
            kept = [(position, text) for position, text in kept if position <= frame.event["from_position"]]
        elif frame.type == "token":
            kept.append((frame.position, frame.event["content"]))
    words = "".join(text for _, text in kept).split()
    assert words == [str(number) for number in range(len(words))]
    return frames[-1].event["outcome"], len(words)
