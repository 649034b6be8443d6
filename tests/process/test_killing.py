"""Kill -9 takes back nothing that anyone has seen, and every turn still ends once."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from tests.process.running import Running, served
from tests.serving import PATIENCE, Frame

LANES = 2
KILLS = 10


class Watched:
    """A turn, and what a client has seen of it."""

    def __init__(self, message: str, agent: str) -> None:
        self.body = {"message": message, "agent": agent}
        self.turn_id = ""
        self.seen: list[Frame] = []

    async def ask(self, server: Running, session_id: str, enough: asyncio.Event, frames: int) -> None:
        """Reads until the server is gone; says when it has seen enough."""
        try:
            async with server.stream("POST", "/chat/stream", json={**self.body, "session_id": session_id}) as stream:
                self.turn_id = stream.turn_id
                while (block := await stream.next_block()) is not None:
                    if block.data is not None:
                        self.seen.append(block)
                    if len(self.seen) >= frames:
                        enough.set()
        except httpx.TransportError:
            pass

    async def go_on(self, server: Running) -> None:
        """Comes back with the last id seen, and finds exactly the rest."""
        if self.seen and self.seen[-1].type == "done":
            return
        async with server.events(self.turn_id, last_id=self.seen[-1].id) as stream:
            self.seen += await stream.rest()

    async def check(self, server: Running) -> None:
        """What was seen is what there is: whole, without gap or repetition, with one end."""
        assert [frame.position for frame in self.seen] == list(range(1, len(self.seen) + 1))
        assert [frame.type for frame in self.seen].count("done") == 1
        assert self.seen[-1].type == "done"
        assert await server.whole(self.turn_id) == self.seen


async def kill_again_and_again(data: Path, chance: random.Random) -> list[Watched]:
    turns: list[Watched] = []
    interrupted: list[Watched] = []
    for cycle in range(KILLS):
        async with served(data) as server:
            await asyncio.gather(*(turn.go_on(server) for turn in interrupted))
            assert [turn.seen[-1].event["outcome"] for turn in interrupted] == ["interrupted"] * len(interrupted)
            enough = asyncio.Event()
            new = [Watched("2000", "slow"), Watched("400", "gushing")]
            asking = [
                asyncio.create_task(turn.ask(server, f"{cycle}-{number}", enough, chance.randrange(2, 120)))
                for number, turn in enumerate(new)
            ]
            async with asyncio.timeout(PATIENCE):
                await enough.wait()
            await server.kill()
            await asyncio.gather(*asking)
            interrupted = [turn for turn in new if turn.turn_id]
            turns += interrupted
    async with served(data) as server:
        await asyncio.gather(*(turn.go_on(server) for turn in interrupted))
        await asyncio.gather(*(turn.check(server) for turn in turns))
    return turns


# It starts dozens of servers, one after the other.
@pytest.mark.timeout(240)
async def test_a_killed_server_takes_back_nothing(tmp_path: Path) -> None:
    lanes = [tmp_path / str(number) for number in range(LANES)]
    for lane in lanes:
        lane.mkdir()
    found = await asyncio.gather(
        *(kill_again_and_again(lane / "data", random.Random(number)) for number, lane in enumerate(lanes))
    )
    assert all(len(turns) >= KILLS for turns in found)


async def test_a_turn_that_waited_when_the_server_was_killed_is_run_by_the_next(tmp_path: Path) -> None:
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
