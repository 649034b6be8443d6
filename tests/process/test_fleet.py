"""Tests of two servers that run no turns and one worker on a shared database."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.process.server_process import ServerProcess, run, served, working
from tests.process.shared_database import temporary_database
from tests.process.template import CommandProcess
from tests.serving import PATIENCE, error_of, within

pytestmark = pytest.mark.asyncio(loop_scope="module")

CANCELS = 30
HINTED = """
from turnwire.stores.postgres import notifications

# Longer than any test: what one process learns of another, it has been told.
notifications.SAFETY_SECONDS = 3600.0

async def hinted(turn):
    yield ""
"""


class Fleet(NamedTuple):
    front: ServerProcess
    other: ServerProcess
    worker: CommandProcess


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folders = [tmp_path_factory.mktemp(name) / "data" for name in ("front", "other", "worker")]
    for folder in folders:
        (folder.parent / "hinted_agents.py").write_text(HINTED)
    hinted = ("--agent", "hinted_agents:hinted")
    with temporary_database() as url:
        async with (
            served(folders[0], *hinted, database_url=url, max_worker_turns="0") as front,
            served(folders[1], *hinted, database_url=url, max_worker_turns="0") as other,
            working(folders[2], *hinted, database_url=url) as worker,
        ):
            yield Fleet(front, other, worker)


async def test_turn_is_accepted_run_read_and_cancelled_in_different_processes(fleet: Fleet) -> None:
    front, other, worker = fleet
    turn_id = await front.start(agent="telling")
    (token,) = [frame for frame in await other.whole(turn_id) if frame.type == "token"]
    assert token.event["content"] == str(worker.pid)
    assert (await front.http.get("/readyz")).json()["running_turns"] == 0

    # Only a notification can deliver it: these processes do not poll for as long as the test lasts.
    for number in range(CANCELS):
        asking, cancelling = (front, other) if number % 2 else (other, front)
        async with asking.ask("1", agent="silent") as stream:
            await stream.until("token")
            answer = await cancelling.http.post(f"/v1/turns/{stream.turn_id}/cancel")
            assert answer.json()["outcome"] == "cancelled", answer.text
            assert (await stream.rest())[-1].event["outcome"] == "cancelled"


async def test_session_runs_one_turn_at_a_time_across_servers(fleet: Fleet) -> None:
    front, other, _ = fleet
    async with front.ask("1", agent="silent", session_id="s") as first:
        await first.until("token")
        refused = await other.http.post(
            "/chat", json={"message": "1", "agent": "slow", "session_id": "s", "on_busy": "reject"}
        )
        error_of(refused, 409)
        async with other.ask("2", agent="slow", session_id="s") as second:
            await second.until("message")
            async with other.ask("3", agent="slow", session_id="s", on_busy="interrupt") as third:
                ends = [(await stream.rest())[-1].event for stream in (first, second, third)]
    assert [end["outcome"] for end in ends] == ["cancelled", "cancelled", "completed"]
    assert ends[0]["reason"] == "superseded"
    # A queued turn of the other server runs when the first has ended.
    async with front.ask("20", agent="slow", session_id="t") as first, other.ask("1", session_id="t") as second:
        last = [(await stream.rest())[-1] for stream in (first, second)]
    assert [end.event["outcome"] for end in last] == ["completed", "completed"]


async def test_approval_and_disconnect_are_noticed_across_servers(fleet: Fleet) -> None:
    front, other, _ = fleet
    async with front.ask(agent="careful") as stream:
        await stream.until("approval_request")
        path = f"/v1/turns/{stream.turn_id}/approvals/c1"
        # The worker suspends the turn a moment after the request.
        async with asyncio.timeout(PATIENCE):
            while (answer := await other.http.post(path, json={"approved": True})).status_code == 409:
                pass
        assert answer.status_code == 200, answer.text
        text = "".join(frame.event["content"] for frame in await stream.rest() if frame.type == "token")
    assert text == "Yes, same process"

    async with front.ask("1", agent="silent", on_disconnect="cancel") as stream:
        await stream.until("token")
        async with other.events(stream.turn_id) as reading:
            await reading.until("token")
            await stream.response.aclose()
            async with front.ask("1", agent="silent", on_disconnect="cancel") as later:
                await later.until("token")
            assert await end_reason(other, later.turn_id) == "disconnected"
            # This turn still has a reader in another process.
            assert (await front.snapshot(stream.turn_id))["phase"] == "running"
    assert await end_reason(front, stream.turn_id) == "disconnected"


async def end_reason(server: ServerProcess, turn_id: str) -> str:
    """Return why the turn ended, without reading it meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while (await server.snapshot(turn_id))["phase"] != "ended":
            pass
    return (await server.whole(turn_id))[-1].event["reason"]


async def test_stopped_worker_finishes_its_turns_and_lost_worker_is_detected(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Without LISTEN/NOTIFY, as behind a pooler, a cancel is only slower."""
    folder, data = tmp_path_factory.mktemp("front") / "data", tmp_path_factory.mktemp("worker") / "data"
    release = data.parent / "release"
    with temporary_database() as url:
        shared: dict[str, Any] = {"database_url": url, "database_hints": "false", "shutdown_grace": "600"}
        # The front looks for lost workers four times in a lease. The first worker must not lose its own.
        async with served(folder, max_worker_turns="0", heartbeat="5", lease="2", **shared) as front:
            async with working(data, lease="600", **shared) as worker:
                async with front.ask("1", agent="silent") as stream:
                    await stream.until("token")
                    await front.http.post(f"/v1/turns/{stream.turn_id}/cancel")
                    assert (await stream.rest())[-1].event["outcome"] == "cancelled"
                async with front.ask(str(release), agent="held") as stream:
                    await stream.until("token")
                    worker.terminate()
                    assert b"1 turn(s) have 600 s to finish" in await within(worker.stdout.readline())  # type: ignore[union-attr]
                    release.touch()
                    assert (await stream.rest())[-1].event["outcome"] == "completed"
                assert (await ended(worker))[0] == 0
            for hurry in (True, False):
                # A worker that loses its short lease beforehand gives the same end.
                async with working(data, lease="2", **shared) as worker, front.ask("1", agent="silent") as stream:
                    await stream.until("token")
                    if hurry:
                        worker.terminate()
                        assert b"1 turn(s)" in await within(worker.stdout.readline())  # type: ignore[union-attr]
                        worker.terminate()
                    else:
                        worker.kill()
                    assert (await ended(worker))[0] == (128 + 15 if hurry else -9)
                    end = (await stream.rest())[-1].event
                    assert (end["outcome"], end["reason"]) == ("interrupted", "worker_lost")


async def ended(worker: CommandProcess) -> tuple[int, bytes]:
    assert worker.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return await worker.wait(), await worker.stdout.read()


async def test_worker_that_could_run_no_turns_is_refused_with_a_reason(tmp_path: Path) -> None:
    alone, idle = await asyncio.gather(
        run("worker", "--data", tmp_path / "data"),
        run("worker", database_url="postgresql://nobody@localhost/none", max_worker_turns="0"),
    )
    assert (alone.code, idle.code) == (1, 1)
    assert "--database-url postgresql://" in alone.err
    assert "would run no turns" in idle.err
    assert not os.path.exists(tmp_path / "data")
