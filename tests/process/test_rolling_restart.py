"""Tests of rolling restarts under load: no event is lost or repeated, and no request is refused.

Each turn yields fifty words a second and has two readers, in different processes where there are two.
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

from tests.process.server_process import START_PATIENCE, ServerProcess, run, served
from tests.process.shared_database import NEW_CONNECTION, Follower, temporary_database
from tests.serving import PATIENCE, Client, until, within

LANES = 3
WORDS = 40
TEXT = "".join(f"{number} " for number in range(WORDS))


class Load:
    """Sessions that send one message after another until the block ends."""

    def __init__(self, servers: Callable[[], Sequence[Client]], *, may_retry: bool) -> None:
        self.followers: list[Follower] = []
        self._servers = servers
        self._may_retry = may_retry
        self._numbers = itertools.count()
        self._over = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._send_messages(f"lane-{lane}"))
            await until(lambda: len(self.followers) >= 2 * LANES)
            yield self
            self._over = True

    async def _send_messages(self, session_id: str) -> None:
        while not self._over:
            name = f"turn-{next(self._numbers)}"
            await self._start(name, session_id)
            both = [Follower(name), Follower(name)]
            self.followers += both
            await asyncio.gather(*(follower.follow(self._servers, first) for first, follower in enumerate(both)))

    async def _start(self, name: str, session_id: str) -> None:
        """Start a turn; retry on the next server if allowed. The turn id makes retries safe."""
        body = {"message": str(WORDS), "agent": "steady", "turn_id": name}
        for number in itertools.count():
            running = self._servers()
            server = running[number % len(running)]
            try:
                answer = await server.http.post(f"/v1/sessions/{session_id}/turns", json=body, headers=NEW_CONNECTION)
            except httpx.TransportError:
                assert self._may_retry, "a connection was refused"
                continue
            if answer.status_code in (200, 201, 202):
                return
            assert self._may_retry, answer.text
            assert answer.status_code == 503, answer.text

    def check(self) -> None:
        for follower in self.followers:
            follower.check(TEXT)


async def make_sessions(server: Client) -> None:
    for lane in range(LANES):
        await server.http.post("/v1/sessions", json={"id": f"lane-{lane}"}, headers=NEW_CONNECTION)


async def test_servers_restarted_in_turn_neither_lose_nor_repeat_events(tmp_path: Path) -> None:
    async def start(name: str) -> ServerProcess:
        (tmp_path / name).mkdir()
        settings = {"database_url": url, "shutdown_grace": "600", "max_steps_per_turn": "10000"}
        serving = served(tmp_path / name / "data", "--log-level", "error", **settings)  # type: ignore[arg-type]
        return await stack.enter_async_context(serving)

    with temporary_database() as url:
        async with AsyncExitStack() as stack:
            servers = [*await asyncio.gather(start("a"), start("b"))]
            await make_sessions(servers[0])
            long = Follower(await servers[0].start(agent="stepping"))
            following = asyncio.create_task(long.follow(lambda: servers))
            async with Load(lambda: servers, may_retry=True).running() as load:
                for name in ("c", "d"):
                    old = servers[0]
                    old.process.terminate()
                    async with asyncio.timeout(2 * PATIENCE):
                        await old.process.wait()
                    servers = [*servers[1:], await start(name)]
                    assert await old.errors == b""
                await until(lambda: len(load.followers) > 4 * LANES)
            await until(lambda: len(step_results(long)) > 1)
            await servers[0].http.post(f"/v1/turns/{long.turn_id}/cancel", headers=NEW_CONNECTION)
            await within(following)
    load.check()
    assert long.moves > 1
    assert [frame.position for frame in long.seen] == list(range(1, len(long.seen) + 1))
    check_steps([frame.event for frame in long.seen])


def step_results(long: Follower) -> set[str]:
    """Return the ids of the processes that ran a step, as far as they were read."""
    return {frame.event["result"] for frame in long.seen if frame.type == "tool_result"}


def check_steps(events: list[dict[str, Any]]) -> None:
    """Assert that every step ran once, though its process was replaced."""
    results = [event for event in events if event["type"] == "tool_result"]
    assert [event["call_id"] for event in results] == [f"c{number}" for number in range(len(results))]
    assert len({event["result"] for event in results}) >= 2
    assert "restart" not in {event["type"] for event in events}


@asynccontextmanager
async def supervised(folder: Path, url: str) -> AsyncIterator[ServerProcess]:
    options = ("--workers", "2", "--log-level", "error")
    settings = {"database_url": url, "shutdown_grace": "600", "max_steps_per_turn": "10000"}
    async with served(folder / "data", *options, **settings) as server:  # type: ignore[arg-type]
        try:
            yield server
        finally:
            if server.process.returncode is None:
                server.process.terminate()
                await within(server.process.wait())


def workers_of(server: ServerProcess) -> list[int]:
    """Return the ids of its running workers, oldest first."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(number) for number in path.read_text().split()]


def are_replaced(workers: list[int], old: list[int]) -> bool:
    return len(workers) == 2 and not set(workers) & set(old)


async def test_workers_replaced_one_by_one_refuse_no_request(tmp_path: Path) -> None:
    with temporary_database() as url:
        async with supervised(tmp_path, url) as server:
            await make_sessions(server)
            old = workers_of(server)
            assert len(old) == 2
            long = Follower(await server.start(agent="stepping"))
            following = asyncio.create_task(long.follow(lambda: [server]))
            await until(lambda: bool(long.seen))
            async with Load(lambda: [server], may_retry=False).running() as load:
                server.process.send_signal(signal.SIGHUP)
                await until(lambda: are_replaced(workers_of(server), old), 2 * START_PATIENCE)
                await until(lambda: len(load.followers) > 2 * LANES)
            await until(lambda: len(step_results(long)) > 1)
            await server.http.post(f"/v1/turns/{long.turn_id}/cancel", headers=NEW_CONNECTION)
            await within(following)
        load.check()
        # The worker that it read from was replaced.
        assert long.moves > 1
        assert sum(follower.refusals for follower in (*load.followers, long)) == 0
        assert await server.errors == b""
        assert server.process.returncode == 0


async def test_workers_share_token_and_keys_and_end_with_their_supervisor(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with temporary_database() as url:
        async with supervised(tmp_path, url) as server:
            *_, second = workers_of(server)
            # A killed worker is restarted.
            os.kill(second, signal.SIGKILL)
            await until(lambda: len(workers_of(server)) == 2 and second not in workers_of(server), START_PATIENCE)
            announcement = json.loads((data / "server.json").read_text())
            assert (announcement["url"], announcement["pid"]) == (server.url, server.process.pid)
            operator = {**NEW_CONNECTION, "X-API-Key": announcement["control_token"]}
            created = await run("keys", "create", "anna", "--data", data, database_url=url)
            anna = {**NEW_CONNECTION, "X-API-Key": created.out.strip()}
            for worker in workers_of(server):
                async with other_workers_paused(server, worker):
                    await until_status(server, NEW_CONNECTION, 401)
                    await until_status(server, anna, 200)
                    assert (await server.http.get("/v1/keys", headers=operator)).status_code == 200
            key_id = (await server.http.get("/v1/keys", headers=operator)).json()["keys"][0]["id"]
            async with other_workers_paused(server, workers_of(server)[0]):
                assert (await server.http.delete(f"/v1/keys/{key_id}", headers=operator)).status_code == 200
            for worker in workers_of(server):
                async with other_workers_paused(server, worker):
                    await until_status(server, anna, 401)
            # With a broken agent no worker is replaced.
            orphans = workers_of(server)
            (tmp_path / "agents_of_the_test.py").write_text("broken =")
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: b"a new worker failed to start; the old ones stay" in server.log, START_PATIENCE)
            await until(lambda: workers_of(server) == orphans)
            await server.kill()
            await until(lambda: not any(map(is_alive, orphans)))
    errors = (await server.errors).decode()
    assert f"worker {second} ended with code -9 and is restarted" in errors
    assert "a new worker failed to start; the old ones stay" in errors


async def test_server_that_cannot_start_reports_the_reason_once(tmp_path: Path) -> None:
    with temporary_database() as url:
        options = ("--data", tmp_path / "data", "--port", "0", "--workers", "3", "--agent", "nowhere:answer")
        refused = await run("serve", *options, database_url=url)
    assert refused.code == 1
    assert refused.err.count("'nowhere' cannot be imported") == 1
    assert "Traceback" not in refused.err
    assert not (tmp_path / "data" / "server.json").exists()


@asynccontextmanager
async def other_workers_paused(server: ServerProcess, worker: int) -> AsyncIterator[None]:
    """Pause the other workers, so that this one answers every request."""
    others = [pid for pid in workers_of(server) if pid != worker]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


async def until_status(server: ServerProcess, headers: dict[str, str], status: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await server.http.get("/v1/sessions", headers=headers)).status_code != status:
            pass


def is_alive(worker: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{worker}/status").read_text()
    except OSError:
        return False


async def test_draining_server_reports_not_ready_and_serves_during_the_delay(tmp_path: Path) -> None:
    async with served(tmp_path / "data", drain_delay="600") as server, server.ask("1", agent="silent") as stream:
        await stream.until("token")
        await start_draining(server)
        # New connections, new turns and open streams still work.
        assert (await server.http.post("/chat", json={"message": "2", "agent": "slow"})).status_code == 200
        await server.http.post(f"/v1/turns/{stream.turn_id}/cancel")
        assert (await stream.rest())[-1].type == "done"


async def test_readers_of_a_draining_server_are_asked_to_reconnect_after_the_delay(tmp_path: Path) -> None:
    async with (
        served(tmp_path / "data", drain_delay="1", shutdown_grace="600") as server,
        server.ask("1", agent="silent") as stream,
    ):
        await stream.until("token")
        began = time.monotonic()
        server.process.terminate()
        assert (await stream.rest())[-1].type == "reconnect"
        assert time.monotonic() - began >= 1
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        await within(server.process.wait())


async def start_draining(server: ServerProcess) -> None:
    server.process.terminate()
    async with asyncio.timeout(PATIENCE):
        while (answer := await server.http.get("/readyz")).status_code == 200:
            pass
    assert answer.json() == {"status": "draining"}
    assert answer.headers["connection"] == "close"
