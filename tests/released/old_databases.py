"""Databases that older versions have written, as SQL: one for each schema of each store.

`python -m tests.released.old_databases COMMIT` writes those of a commit of this repository. Its servers write turns in
every phase, and are killed. Run it with the last commit of a schema when you add a migration.
"""

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from tests.faults.__main__ import older_source
from tests.faults.cluster import ServerProcess
from tests.postgres_server import PostgresServer
from turnwire.stores.sqlite.schema import DATABASE_NAME

FOLDER = Path(__file__).parent / "databases"
WORDS = {"ended": 20, "waiting": 20, "continued": 40, "lost": 1_000, "queued": 5}
"""How many words the agent of each turn yields. A turn is in a session of its name, `queued` in that of `lost`."""
_CENTURY = 3_000_000_000
_PATIENCE = 120.0


def schemas(store: str) -> dict[int, Path]:
    """Return the databases of a store, by their schemas."""
    return {int(path.stem.partition("-")[2]): path for path in sorted(FOLDER.glob(f"{store}-*.sql"))}


class OldServer(ServerProcess):
    """A server of an older Turnwire, whose turns wait for a person as long as anybody may run the tests."""

    def __init__(self, folder: Path, source: Path, url: str | None) -> None:
        super().__init__(0, folder)
        self._source = source
        self._url = url

    def settings(self) -> dict[str, object]:
        database = {"database_url": self._url} if self._url else {}
        return {**super().settings(), "approval_timeout": _CENTURY, **database}

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self._source)}


async def write_turns(server: OldServer, is_sealed: Callable[[], Awaitable[bool]]) -> None:
    """Write one turn that has ended, and is sealed, and one in each other phase. Kill the server in the middle."""
    await server.start()
    assert server.is_ready, "the server did not start"
    async with httpx.AsyncClient(base_url=server.url, timeout=_PATIENCE, trust_env=False) as http:

        async def start(session: str, agent: str, words: int, pause: float) -> str:
            await http.post("/v1/sessions", json={"id": session})
            body = {"message": f"{words} {pause}", "agent": agent, "on_busy": "enqueue"}
            answer = await http.post(f"/v1/sessions/{session}/turns", json=body)
            assert answer.status_code == 202, answer.text
            return answer.json()["turn_id"]

        async def until(turn_id: str, holds: Callable[[dict[str, Any]], bool]) -> None:
            async def answers() -> bool:
                return holds((await http.get(f"/v1/turns/{turn_id}")).json())

            await _until(answers)

        ended = await start("ended", "counting", WORDS["ended"], 0.001)
        await until(ended, lambda turn: turn["phase"] == "ended")
        await _until(is_sealed)
        waiting = await start("waiting", "asking", WORDS["waiting"], 0.001)
        await until(waiting, lambda turn: turn["phase"] == "waiting")
        continued = await start("continued", "resuming", WORDS["continued"], 0.05)
        lost = await start("lost", "counting", WORDS["lost"], 0.05)
        await start("lost", "counting", WORDS["queued"], 0.001)
        await until(lost, lambda turn: turn["last_position"] > 5)
        await until(continued, lambda turn: bool(turn["state"].get("steps")))
    await server.close()


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await holds():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.02)


async def write_sqlite(source: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node0" / DATABASE_NAME

        async def is_sealed() -> bool:
            with sqlite3.connect(path) as connection:
                return bool(connection.execute("SELECT count(*) FROM turn WHERE sealed").fetchone()[0])

        await write_turns(OldServer(Path(folder), source, None), is_sealed)
        with sqlite3.connect(path) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            dump = "\n".join([*connection.iterdump(), f"PRAGMA user_version = {version};", ""])
    (FOLDER / f"sqlite-{version}.sql").write_text(dump)


async def write_postgres(source: Path) -> None:
    engine = await asyncio.to_thread(PostgresServer)
    try:
        url = engine.url(await asyncio.to_thread(engine.new_database))

        async def fetchval(query: str) -> Any:
            connection = await asyncpg.connect(url)
            try:
                return await connection.fetchval(query)
            finally:
                await connection.close()

        async def is_sealed() -> bool:
            return bool(await fetchval("SELECT count(*) FROM turnwire.turn WHERE sealed"))

        with tempfile.TemporaryDirectory() as folder:
            await write_turns(OldServer(Path(folder), source, url), is_sealed)
        version = await fetchval("SELECT version FROM turnwire.schema_version")
        command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
        dump = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    finally:
        await asyncio.to_thread(engine.remove)
    # Not the settings of the session, and what only `psql` understands.
    lines = [line for line in dump.stdout.splitlines() if line and not line.startswith(("--", "\\", "SET ", "SELECT "))]
    sequences = [line for line in dump.stdout.splitlines() if line.startswith("SELECT pg_catalog.setval")]
    (FOLDER / f"postgres-{version}.sql").write_text("\n".join([*lines, *sequences, ""]))


async def main(commit: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = older_source(commit, Path(folder))
        await write_sqlite(source)
        await write_postgres(source)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
