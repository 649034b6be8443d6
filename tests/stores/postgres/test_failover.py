"""Failover to a standby: a synchronous one loses nothing; an asynchronous one may, and readers are told."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.postgres_server import PostgresServer, make_synchronous, wait_for_answer
from tests.serving import PATIENCE, Frame, Puppet, Served, quick_settings, serving, until, within
from turnwire import Turnwire

pytestmark = [pytest.mark.process, pytest.mark.timeout(6 * PATIENCE)]
LEASE = 2.0


class Pair:
    """A primary and its standby, as one database for its clients."""

    def __init__(self) -> None:
        self.primary = PostgresServer()
        self.standby = PostgresServer(primary=self.primary)
        self.database = self.primary.new_database()
        self.url = self.primary.url(self.database, self.standby)

    async def wait_for_standby(self) -> None:
        """Wait until the standby has everything."""
        await wait_for_answer(
            self.primary, "SELECT bool_or(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication"
        )

    async def cut_off_standby(self) -> None:
        """Let the standby get nothing more."""
        await asyncio.to_thread(self.standby.configure, "primary_conninfo", "")
        await wait_for_answer(self.primary, "SELECT count(*) = 0 FROM pg_stat_replication")

    async def fail_over(self) -> None:
        await asyncio.to_thread(self.primary.stop)
        await asyncio.to_thread(self.standby.promote)

    def remove(self) -> None:
        self.standby.remove()
        self.primary.remove()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.remove()


@asynccontextmanager
async def server_of(pair: Pair, puppet: object, folder: Path) -> AsyncIterator[Served]:
    turnwire = Turnwire(puppet, store="postgres", settings=quick_settings(folder, database_url=pair.url, lease=LEASE))
    async with serving(turnwire) as server:
        yield server


def seen(frames: list[Frame]) -> list[tuple[str | None, str | None]]:
    return [(frame.id, frame.data) for frame in frames]


async def test_failover_to_a_synchronous_standby_loses_nothing_and_the_turn_goes_on(pair: Pair, tmp_path: Path) -> None:
    await pair.wait_for_standby()
    await make_synchronous(pair.primary)
    puppet = Puppet()
    async with server_of(pair, puppet, tmp_path) as server:
        done_before = [await server.start(f"Question {number}", agent="default") for number in range(3)]
        for _ in done_before:
            part = await puppet.part()
            part.say("before")
            part.end()
        logs = [seen(await server.whole(turn_id)) for turn_id in done_before]
        async with server.ask("Over the failover") as stream:
            running = await puppet.part()
            running.say(*(f"{number} " for number in range(50)))
            shown = await stream.until("token")
            failing_over = asyncio.create_task(pair.fail_over())
            for number in range(50, 100):
                running.say(f"{number} ")
            await within(failing_over)
            running.say("last")
            running.end()
            frames = shown + await stream.rest()
        text = "".join(frame.event["content"] for frame in frames if frame.type == "token")
        assert text == "".join(f"{number} " for number in range(100)) + "last"
        assert [frame.position for frame in frames] == list(range(1, len(frames) + 1))
        assert [seen(await server.whole(turn_id)) for turn_id in done_before] == logs
        assert seen(await server.whole(stream.turn_id)) == seen(frames)


async def test_failover_to_an_asynchronous_standby_resets_readers_whose_position_is_gone(
    pair: Pair, tmp_path: Path
) -> None:
    puppet = Puppet()
    async with server_of(pair, puppet, tmp_path) as server:
        async with server.ask("Over the failover") as stream, server.ask("Before it") as ended:
            # Either turn may begin first.
            parts = {part.turn.message: part for part in (await puppet.part(), await puppet.part())}
            running, other = parts["Over the failover"], parts["Before it"]
            running.say("kept ")
            other.say("kept ")
            early = await stream.until("token")
            await ended.until("token")
            await pair.wait_for_standby()
            await pair.cut_off_standby()
            running.say(*(f"lost {number} " for number in range(10)))
            late = [*early, *[await stream.next() for _ in range(10)]]
            # These are acknowledged too: the end of a turn, and a turn as a whole.
            other.end()
            await ended.until("done")
            lost_turn = await server.start("Lost")
            lost = await puppet.part()
            await within(pair.fail_over())
            running.say("after ")
            running.end()
            lost.end()
            # The stream of a reader that has stayed breaks off without an end, so its client comes back.
            with pytest.raises(httpx.RemoteProtocolError):
                await stream.rest()
        assert not any(frame.type == "done" for frame in stream.seen)
        log = await server.whole(stream.turn_id)
        assert [frame.type for frame in log].count("done") == 1
        assert [frame.position for frame in log] == list(range(1, len(log) + 1))
        assert not any("lost 0" in str(frame.data) for frame in log)
        # A reader that had seen no more than the standby goes on; one that had seen more begins again.
        async with server.events(stream.turn_id, last_id=early[-1].id) as again:
            assert seen(await again.rest()) == seen(log[len(early) :])
        async with server.events(stream.turn_id, last_id=late[-1].id) as again:
            reset, *rest = await again.rest()
        assert (reset.type, seen(rest)) == ("reset", seen(log))
        assert [frame.type for frame in await server.whole(ended.turn_id)].count("done") == 1
        assert (await server.http.get(f"/v1/turns/{lost_turn}")).status_code == 404
        await until(lambda: len(server.turnwire.runner.worker.running) == 0)
        # The database is whole: the next turn runs.
        next_turn = await server.start("Afterwards")
        part = await puppet.part()
        part.end()
        assert (await server.ended(next_turn))["outcome"] == "completed"
