"""A restart under load: readers go on elsewhere, turns end as they would have, and nothing is lost, doubled or refused.

Each turn says fifty words a second and is read twice, at two processes where there are two.
"""

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.running import START_PATIENCE, Running, run, served
from tests.process.sharing import ANEW, Follower, a_database
from tests.serving import PATIENCE, Client, until, within

# They start many processes, which on a busy machine takes a while.
pytestmark = pytest.mark.timeout(180)

LANES = 3
WORDS = 40
TEXT = "".join(f"{number} " for number in range(WORDS))


class Load:
    """Sessions that are asked one thing after the other, until they are told to stop."""

    def __init__(self, servers: Callable[[], Sequence[Client]], *, patient: bool) -> None:
        self.followers: list[Follower] = []
        self._servers = servers
        self._patient = patient
        self._numbers = itertools.count()
        self._over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._ask_on(f"lane-{lane}"))
            await until(lambda: len(self.followers) >= 2 * LANES)
            yield self
            self._over = True

    async def _ask_on(self, session_id: str) -> None:
        while not self._over:
            name = f"turn-{next(self._numbers)}"
            await self._start(name, session_id)
            both = [Follower(name), Follower(name)]
            self.followers += both
            await asyncio.gather(*(one.follow(self._servers, first) for first, one in enumerate(both)))

    async def _start(self, name: str, session_id: str) -> None:
        """Asks again elsewhere if it is refused and may be: under the same name it is started once."""
        body = {"message": str(WORDS), "agent": "steady", "turn_id": name}
        for number in itertools.count():
            there = self._servers()
            server = there[number % len(there)]
            try:
                answer = await server.http.post(f"/v1/sessions/{session_id}/turns", json=body, headers=ANEW)
            except httpx.TransportError:
                assert self._patient, "a connection was refused"
                continue
            if answer.status_code in (200, 201, 202):
                return
            assert self._patient, answer.text
            assert answer.status_code == 503, answer.text

    def check(self) -> int:
        """How many turns there were."""
        for one in self.followers:
            one.check(TEXT)
        return len(self.followers) // 2


async def make_sessions(server: Client) -> None:
    for lane in range(LANES):
        await server.http.post("/v1/sessions", json={"id": f"lane-{lane}"}, headers=ANEW)


async def test_two_servers_are_restarted_one_after_the_other_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    async def start(name: str) -> Running:
        (tmp_path / name).mkdir()
        settings = {"database_url": url, "shutdown_grace": "20", "max_steps_per_turn": "10000"}
        serving = served(tmp_path / name / "data", **settings)  # type: ignore[arg-type]
        return await stack.enter_async_context(serving)

    with a_database() as url:
        async with AsyncExitStack() as stack:
            there = [*await asyncio.gather(start("a"), start("b"))]
            await make_sessions(there[0])
            long = Follower(await there[0].start(agent="stepping"))
            following = asyncio.create_task(long.follow(lambda: there))
            async with Load(lambda: there, patient=True).running() as load:
                for name in ("c", "d"):
                    old = there[0]
                    old.process.terminate()
                    async with asyncio.timeout(2 * PATIENCE):
                        await old.process.wait()
                    there = [*there[1:], await start(name)]
                    assert await old.errors == b""
            await there[0].http.post(f"/v1/turns/{long.turn_id}/cancel", headers=ANEW)
            await within(following)
    assert load.check() > 2 * LANES
    assert long.moves > 1
    assert [frame.position for frame in long.seen] == list(range(1, len(long.seen) + 1))
    check_steps([frame.event for frame in long.seen])


def check_steps(events: list[dict[str, Any]]) -> None:
    """None is missing and none was taken twice, though whoever took them was replaced."""
    results = [event for event in events if event["type"] == "tool_result"]
    assert [event["call_id"] for event in results] == [f"c{number}" for number in range(len(results))]
    assert len({event["result"] for event in results}) >= 2
    assert "restart" not in {event["type"] for event in events}


@asynccontextmanager
async def supervised(folder: Path, url: str) -> AsyncIterator[Running]:
    options = ("--workers", "2", "--log-level", "error")
    settings = {"database_url": url, "shutdown_grace": "20", "max_steps_per_turn": "10000"}
    async with served(folder / "data", *options, **settings) as server:  # type: ignore[arg-type]
        try:
            yield server
        finally:
            if server.process.returncode is None:
                server.process.terminate()
                await within(server.process.wait())


def workers_of(server: Running) -> list[int]:
    """The processes that it has started and that live, oldest first."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(number) for number in path.read_text().split()]


def are_others(workers: list[int], old: list[int]) -> bool:
    return len(workers) == 2 and not set(workers) & set(old)


async def test_workers_are_replaced_one_by_one_and_nobody_is_refused_meanwhile(tmp_path: Path) -> None:
    with a_database() as url:
        async with supervised(tmp_path, url) as server:
            await make_sessions(server)
            old = workers_of(server)
            assert len(old) == 2
            long = Follower(await server.start(agent="stepping"))
            following = asyncio.create_task(long.follow(lambda: [server]))
            await until(lambda: bool(long.seen))
            async with Load(lambda: [server], patient=False).running() as load:
                server.process.send_signal(signal.SIGHUP)
                await until(lambda: are_others(workers_of(server), old), 4 * START_PATIENCE)
            await server.http.post(f"/v1/turns/{long.turn_id}/cancel", headers=ANEW)
            await within(following)
        assert load.check() > LANES
        # Whichever of the workers it read from, that one has gone.
        assert long.moves > 1
        assert sum(one.refusals for one in (*load.followers, long)) == 0
        assert await server.errors == b""
        assert server.process.returncode == 0


async def test_workers_share_the_token_and_the_keys_and_none_outlives_their_parent(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with a_database() as url:
        async with supervised(tmp_path, url) as server:
            *_, second = workers_of(server)
            # One that dies is started again.
            os.kill(second, signal.SIGKILL)
            await until(lambda: len(workers_of(server)) == 2 and second not in workers_of(server))
            word = json.loads((data / "server.json").read_text())
            assert (word["url"], word["pid"]) == (server.url, server.process.pid)
            operator = {**ANEW, "X-API-Key": word["control_token"]}
            made = await run("keys", "create", "anna", "--data", data, database_url=url)
            anna = {**ANEW, "X-API-Key": made.out.strip()}
            for worker in workers_of(server):
                async with only(server, worker):
                    await answered(server, ANEW, 401)
                    await answered(server, anna, 200)
                    assert (await server.http.get("/v1/keys", headers=operator)).status_code == 200
            key_id = (await server.http.get("/v1/keys", headers=operator)).json()["keys"][0]["id"]
            async with only(server, workers_of(server)[0]):
                assert (await server.http.delete(f"/v1/keys/{key_id}", headers=operator)).status_code == 200
            for worker in workers_of(server):
                async with only(server, worker):
                    await answered(server, anna, 401)
            # With an agent that is broken, nothing is replaced.
            orphans = workers_of(server)
            (tmp_path / "agents_of_the_test.py").write_text("broken =")
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: len(workers_of(server)) == 3, START_PATIENCE)
            await until(lambda: workers_of(server) == orphans, START_PATIENCE)
            await until(lambda: b"a new worker does not start; the old ones stay" in server.log)
            await server.kill()
            await until(lambda: not any(map(is_alive, orphans)))
    told = (await server.errors).decode()
    assert f"worker {second} ended with code -9; another is started" in told


async def test_a_server_that_cannot_start_says_why_once(tmp_path: Path) -> None:
    with a_database() as url:
        options = ("--data", tmp_path / "data", "--port", "0", "--workers", "3", "--agent", "nowhere:answer")
        refused = await run("serve", *options, database_url=url)
    assert refused.code == 1
    assert refused.err.count("'nowhere' cannot be imported") == 1
    assert "Traceback" not in refused.err
    assert not (tmp_path / "data" / "server.json").exists()


@asynccontextmanager
async def only(server: Running, worker: int) -> AsyncIterator[None]:
    """The other workers stand still, so that whoever asks is answered by this one."""
    others = [one for one in workers_of(server) if one != worker]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


async def answered(server: Running, headers: dict[str, str], status: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await server.http.get("/v1/sessions", headers=headers)).status_code != status:
            pass


def is_alive(worker: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{worker}/status").read_text()
    except OSError:
        return False


# Long enough for a few requests on a busy machine.
DRAIN = 6.0


async def test_a_balancer_is_told_first_and_everything_goes_on_for_as_long_as_it_needs(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "data", drain_delay=f"{DRAIN:g}", shutdown_grace="5") as server,
        server.ask("1", agent="silent") as stream,
    ):
        await stream.until("token")
        began = time.monotonic()
        server.process.terminate()
        async with asyncio.timeout(PATIENCE):
            while (answer := await server.http.get("/readyz")).status_code == 200:
                pass
        assert answer.json() == {"status": "draining"}
        assert answer.headers["connection"] == "close"
        # A new connection, a new turn, and a reader that is there already.
        assert (await server.http.post("/chat", json={"message": "2", "agent": "slow"})).status_code == 200
        assert (await stream.rest())[-1].type == "reconnect"
        assert time.monotonic() - began >= DRAIN
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        await within(server.process.wait())
