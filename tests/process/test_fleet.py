"""Any process accepts a message, any runs it, any is read from: two fronts that run nothing, and one worker."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.process.running import Running, run, served, working
from tests.process.sharing import a_database
from tests.serving import PATIENCE, error_of, within

# They start many processes, which on a busy machine takes a while.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

CANCELS = 30
HINTED = """
from turnwire.stores.postgres import following

# Longer than any test: what one process learns of another, it has been told.
following.SAFETY_SECONDS = 3600.0

async def hinted(turn):
    yield ""
"""


class Fleet(NamedTuple):
    front: Running
    other: Running
    worker: asyncio.subprocess.Process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folders = [tmp_path_factory.mktemp(name) / "data" for name in ("front", "other", "worker")]
    for folder in folders:
        (folder.parent / "hinted_agents.py").write_text(HINTED)
    hinted = ("--agent", "hinted_agents:hinted")
    with a_database() as url:
        async with (
            served(folders[0], *hinted, database_url=url, max_worker_turns="0") as front,
            served(folders[1], *hinted, database_url=url, max_worker_turns="0") as other,
            working(folders[2], *hinted, database_url=url) as worker,
        ):
            yield Fleet(front, other, worker)


async def test_what_one_process_accepts_another_runs_and_a_third_shows_and_stops(fleet: Fleet) -> None:
    front, other, worker = fleet
    turn_id = await front.start(agent="telling")
    (token,) = [frame for frame in await other.whole(turn_id) if frame.type == "token"]
    assert token.event["content"] == str(worker.pid)
    assert (await front.http.get("/readyz")).json()["running_turns"] == 0

    # Only a hint can say so: these processes do not look by themselves for as long as the test lasts.
    for number in range(CANCELS):
        asked, told = (front, other) if number % 2 else (other, front)
        async with asked.ask("1", agent="silent") as stream:
            await stream.until("token")
            answer = await told.http.post(f"/v1/turns/{stream.turn_id}/cancel")
            assert answer.json()["outcome"] == "cancelled", answer.text
            assert (await stream.rest())[-1].event["outcome"] == "cancelled"


async def test_a_session_answers_one_message_at_a_time_wherever_they_come_from(fleet: Fleet) -> None:
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
    # Of two that wait, the second runs when the first has ended.
    async with front.ask("20", agent="slow", session_id="t") as first, other.ask("1", session_id="t") as second:
        told = [(await stream.rest())[-1] for stream in (first, second)]
    assert [end.event["outcome"] for end in told] == ["completed", "completed"]


async def test_a_decision_and_a_departure_are_noticed_wherever_they_happen(fleet: Fleet) -> None:
    front, other, _ = fleet
    async with front.ask(agent="careful") as stream:
        await stream.until("approval_request")
        path = f"/v1/turns/{stream.turn_id}/approvals/c1"
        # The worker parks the turn a moment after it has asked.
        async with asyncio.timeout(PATIENCE):
            while (answer := await other.http.post(path, json={"approved": True})).status_code == 409:
                pass
        assert answer.status_code == 200, answer.text
        text = "".join(frame.event["content"] for frame in await stream.rest() if frame.type == "token")
    assert text == "Yes, same process"

    async with front.ask("1", agent="silent", on_disconnect="cancel") as asked:
        await asked.until("token")
        async with other.events(asked.turn_id) as reading:
            await reading.until("token")
            await asked.response.aclose()
            async with front.ask("1", agent="silent", on_disconnect="cancel") as later:
                await later.until("token")
            assert await why_ended(other, later.turn_id) == "disconnected"
            # Of this one there is a reader left, in another process.
            assert (await front.snapshot(asked.turn_id))["phase"] == "running"
    assert await why_ended(front, asked.turn_id) == "disconnected"


async def why_ended(server: Running, turn_id: str) -> str:
    """Without becoming a reader."""
    async with asyncio.timeout(PATIENCE):
        while (await server.snapshot(turn_id))["phase"] != "ended":
            pass
    return (await server.whole(turn_id))[-1].event["reason"]


async def test_a_worker_that_goes_finishes_its_turns_and_one_that_is_lost_is_noticed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also without hints, behind a pooler: a cancel is only slower then."""
    # Long enough for a worker on a busy machine to keep it.
    lease = 3.0
    folder, data = tmp_path_factory.mktemp("front") / "data", tmp_path_factory.mktemp("worker") / "data"
    with a_database() as url:
        shared: dict[str, Any] = {"database_url": url, "database_hints": "false", "shutdown_grace": "20"}
        shared["lease"] = str(lease)
        async with served(folder, max_worker_turns="0", heartbeat="5", **shared) as front:
            async with working(data, **shared) as worker:
                async with front.ask("1", agent="silent") as stream:
                    await stream.until("token")
                    await front.http.post(f"/v1/turns/{stream.turn_id}/cancel")
                    assert (await stream.rest())[-1].event["outcome"] == "cancelled"
                async with front.ask("60", agent="steady") as stream:
                    await stream.until("token")
                    worker.terminate()
                    assert (await stream.rest())[-1].event["outcome"] == "completed"
                code, said = await ended(worker)
                assert code == 0
                assert b"1 turn(s) have 20 s to finish" in said
            for hurry in (True, False):
                async with working(data, **shared) as worker, front.ask("1", agent="silent") as stream:
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


async def ended(worker: asyncio.subprocess.Process) -> tuple[int, bytes]:
    assert worker.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return await worker.wait(), await worker.stdout.read()


async def test_a_worker_that_could_do_nothing_is_refused_in_words(tmp_path: Path) -> None:
    alone, idle = await asyncio.gather(
        run("worker", "--data", tmp_path / "data"),
        run("worker", database_url="postgresql://nobody@localhost/none", max_worker_turns="0"),
    )
    assert (alone.code, idle.code) == (1, 1)
    assert "--database-url postgresql://" in alone.err
    assert "would run nothing" in idle.err
    assert not os.path.exists(tmp_path / "data")
