"""Tests of `serve --isolate`: servers that run no agents, and workers that serve nothing, under one supervisor."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.extensions.harness import write_extension
from tests.process.server_process import START_PATIENCE, ServerProcess, run, served
from tests.process.shared_database import NEW_CONNECTION, Follower, temporary_database
from tests.process.test_rolling_restart import is_alive, step_results, workers_of
from tests.process.test_shared import MARKED
from tests.serving import until, within
from turnwire import Turnwire
from turnwire.settings import Settings

BLOCKING = """
import asyncio
import os
import time

async def blocking(turn):
    # Block the event loop from the moment that one file is there until another one is.
    yield str(os.getpid())
    while not os.path.exists(f"{turn.message}.begin"):
        await asyncio.sleep(0.01)
    deadline = time.monotonic() + 120
    while not os.path.exists(f"{turn.message}.end") and time.monotonic() < deadline:
        time.sleep(0.01)
    yield " done"
"""


@asynccontextmanager
async def isolated(folder: Path, url: str, *options: str, **settings: str) -> AsyncIterator[ServerProcess]:
    (folder / "blocking_agents.py").write_text(BLOCKING)
    arguments = ("--isolate", *options, "--agent", "blocking_agents:blocking")
    settings = {"database_url": url, "max_steps_per_turn": "10000", **settings}
    async with served(folder / "data", *arguments, **settings) as server:  # type: ignore[arg-type]
        try:
            yield server
        finally:
            if server.process.returncode is None:
                server.process.terminate()
                await within(server.process.wait())


def text_of(frames: list[Any]) -> str:
    return "".join(frame.event["content"] for frame in frames if frame.type == "token")


async def test_agent_that_blocks_delays_no_other_turn_and_no_request(tmp_path: Path) -> None:
    marker = tmp_path / "block"
    with temporary_database() as url:
        # The lease is longer than the test: no other worker may take the turn that blocks.
        async with isolated(tmp_path, url, lease="600") as server:
            processes = workers_of(server)
            assert len(processes) == 4
            async with server.ask(str(marker), agent="blocking") as blocked:
                blocker = int((await blocked.until("token"))[-1].event["content"])
                assert blocker in processes
                Path(f"{marker}.begin").touch()
                report = f"(blocking), by turn {blocked.turn_id}".encode()
                await until(lambda: report in server.log, START_PATIENCE)
                assert b"blocking_agents.py:13 (blocking)" in server.log
                # Turns that begin now run in the other worker; the servers run none.
                whole = await server.whole(await server.start("40", agent="slow"))
                assert text_of(whole) == "".join(f"{word} " for word in range(40))
                pids = {int(text_of(await server.whole(await server.start(agent="telling")))) for _ in range(4)}
                assert len(pids) == 1
                assert pids < set(processes) - {blocker}
                assert (await server.snapshot(blocked.turn_id))["phase"] == "running"
                Path(f"{marker}.end").touch()
                assert (await blocked.rest())[-1].event["outcome"] == "completed"
        assert server.process.returncode == 0


async def test_killed_and_replaced_workers_leave_their_turns_to_others(tmp_path: Path) -> None:
    with temporary_database() as url:
        extensions, marks = tmp_path / "extensions", tmp_path / "marks"
        write_extension(extensions, "marked", MARKED)
        options = ("--workers", "1", "--extensions", str(extensions))
        async with isolated(tmp_path, url, *options, lease="5", extension_marked_file=str(marks)) as server:
            front, victim = workers_of(server)
            # What acts by itself is started by a server, and the agents of extensions run in workers.
            assert marks.read_text() == f"start {front}\n"
            answer = await server.http.post("/chat", json={"message": "in", "agent": "parrot"})
            assert answer.json()["content"] == f"in {victim}"
            long = Follower(await server.start(agent="stepping"))
            following = asyncio.create_task(long.follow(lambda: [server]))
            await until(lambda: step_results(long) == {str(victim)})
            os.kill(victim, signal.SIGKILL)
            await until(lambda: len(step_results(long)) == 2, START_PATIENCE)
            # The reader's stream is in another process, and was not broken.
            assert long.moves == 0
            old = workers_of(server)
            assert (front in old, victim in old) == (True, False)
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: len(step_results(long)) == 3, 2 * START_PATIENCE)
            await until(lambda: not any(map(is_alive, old)))
            await server.http.post(f"/v1/turns/{long.turn_id}/cancel", headers=NEW_CONNECTION)
            await within(following)
            children = workers_of(server)
            assert len(children) == 2
            await server.kill()
            # Workers end with their supervisor, as servers do.
            await until(lambda: not any(map(is_alive, children)))
    assert [frame.position for frame in long.seen] == list(range(1, len(long.seen) + 1))
    # The kill took back the step that was running; the replacement waited for its end.
    assert [frame.event["reason"] for frame in long.seen if frame.type == "restart"] == ["worker_lost"]
    assert f"worker {victim} ended with code -9 and is restarted".encode() in await server.errors


async def test_isolation_on_sqlite_and_without_turns_is_refused_with_the_reason(tmp_path: Path) -> None:
    options = ("serve", "--isolate", "--port", "0", "--data", tmp_path / "data")
    alone, idle = await asyncio.gather(
        run(*options), run(*options, database_url="postgresql://nobody@localhost/none", max_worker_turns="0")
    )
    assert (alone.code, idle.code) == (1, 1)
    assert "--isolate needs PostgreSQL" in alone.err
    assert "--database-url postgresql://" in alone.err
    assert "no process would run turns" in idle.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("isolated", [False, True])
async def test_isolated_process_starts_no_extension_that_acts_by_itself(
    isolated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    monkeypatch.setenv("TURNWIRE_EXTENSION_MARKED_FILE", str(marks))
    write_extension(tmp_path / "extensions", "marked", MARKED)
    with temporary_database() as url:
        settings = Settings(data=tmp_path / "data", database_url=SecretStr(url))
        turnwire = Turnwire(
            store="postgres", settings=settings, extensions=[tmp_path / "extensions"], isolated=isolated, demo="first"
        )
        async with turnwire.lifespan():
            assert turnwire.extensions is not None
            assert turnwire.extensions.hosts["marked"].is_up is not isolated
            assert "parrot" in turnwire.agents
    assert marks.exists() is not isolated
