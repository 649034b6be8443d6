"""Tests of `kill -9`: no event that was seen is lost, and every turn ends once."""

import asyncio
import random
from pathlib import Path

import httpx

from tests.process.server_process import ServerProcess, served
from tests.serving import PATIENCE, Frame

LANES = 2
KILLS = 10


class WatchedTurn:
    """A turn and the events that a client has seen of it."""

    def __init__(self, message: str, agent: str) -> None:
        self.body = {"message": message, "agent": agent}
        self.turn_id = ""
        self.seen: list[Frame] = []
        self.begun = asyncio.Event()

    async def ask(self, server: ServerProcess, session_id: str, enough: asyncio.Event, frames: int) -> None:
        """Read until the server is gone; set `enough` after so many frames."""
        try:
            async with server.stream("POST", "/chat/stream", json={**self.body, "session_id": session_id}) as stream:
                self.turn_id = stream.turn_id
                while (block := await stream.next_block()) is not None:
                    if block.data is not None:
                        self.seen.append(block)
                        if block.type == "token":
                            self.begun.set()
                    if len(self.seen) >= frames:
                        enough.set()
        except httpx.TransportError:
            pass

    async def resume(self, server: ServerProcess) -> None:
        """Read the rest of the turn after the last id seen."""
        if self.seen and self.seen[-1].type == "done":
            return
        async with server.events(self.turn_id, last_id=self.seen[-1].id) as stream:
            self.seen += await stream.rest()

    async def check(self, server: ServerProcess) -> None:
        """Assert that the seen events are the whole log, without gap or repetition, with one end."""
        assert [frame.position for frame in self.seen] == list(range(1, len(self.seen) + 1))
        assert [frame.type for frame in self.seen].count("done") == 1
        assert self.seen[-1].type == "done"
        assert await server.whole(self.turn_id) == self.seen


async def kill_repeatedly(data: Path, chance: random.Random) -> list[WatchedTurn]:
    turns: list[WatchedTurn] = []
    interrupted: list[WatchedTurn] = []
    for cycle in range(KILLS):
        async with served(data) as server:
            await asyncio.gather(*(turn.resume(server) for turn in interrupted))
            assert [turn.seen[-1].event["outcome"] for turn in interrupted] == ["interrupted"] * len(interrupted)
            enough = asyncio.Event()
            # Neither ends before its server is killed, however slow the machine is.
            new = [WatchedTurn("1000000", "slow"), WatchedTurn("400", "unending")]
            asking = [
                asyncio.create_task(turn.ask(server, f"{cycle}-{number}", enough, chance.randrange(2, 120)))
                for number, turn in enumerate(new)
            ]
            async with asyncio.timeout(PATIENCE):
                await enough.wait()
                # A turn that was accepted and not begun is run by the next server, and does not end there.
                await asyncio.gather(*(turn.begun.wait() for turn in new))
            await server.kill()
            await asyncio.gather(*asking)
            interrupted = [turn for turn in new if turn.turn_id]
            turns += interrupted
    async with served(data) as server:
        await asyncio.gather(*(turn.resume(server) for turn in interrupted))
        await asyncio.gather(*(turn.check(server) for turn in turns))
    return turns


async def test_killed_server_loses_no_seen_event(tmp_path: Path) -> None:
    lanes = [tmp_path / str(number) for number in range(LANES)]
    for lane in lanes:
        lane.mkdir()
    results = await asyncio.gather(
        *(kill_repeatedly(lane / "data", random.Random(number)) for number, lane in enumerate(lanes))
    )
    assert all(len(turns) >= KILLS for turns in results)


async def test_queued_turn_of_a_killed_server_is_run_by_the_next(tmp_path: Path) -> None:
    async with served(tmp_path / "data") as server, server.ask("1", agent="silent", session_id="s") as first:
        await first.until("token")
        async with server.ask("5", agent="slow", session_id="s", turn_id="waiting") as second:
            await second.until("message")
            await server.kill()
    async with served(tmp_path / "data") as server:
        assert (await server.whole(first.turn_id))[-1].event["reason"] == "worker_lost"
        frames = await server.whole("waiting")
        assert [frame.type for frame in frames] == ["session", "message", *["token"] * 5, "response", "done"]
        assert frames[: len(second.seen)] == second.seen
