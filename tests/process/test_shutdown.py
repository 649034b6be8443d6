"""Tests of SIGTERM: readers are asked to reconnect, turns are ended, and the process ends in time."""

import asyncio
import resource
import signal
from pathlib import Path

from tests.process.server_process import served
from tests.serving import PATIENCE, SseParser
from turnwire.stores.sqlite import SqliteArchive

READERS = 1_000
GRACE = 1


def raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * READERS
    if soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
        )


class Reader(asyncio.Protocol):
    """A minimal reader that records its bytes."""

    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self.path = path
        self.received = b""
        self.began = loop.create_future()
        self.ended = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self.received += data
        if b'"type":"token"' in self.received and not self.began.done():
            self.began.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(None)

    def frames(self) -> list:
        # Every chunk is one write, and no frame has a line that looks like a chunk size.
        lines = self.received.partition(b"\r\n\r\n")[2].split(b"\r\n")
        return [frame for frame in SseParser().feed(b"".join(lines[1::2])) if frame.data is not None]


async def test_server_with_a_thousand_streams_stops_within_the_grace(tmp_path: Path) -> None:
    raise_open_files()
    data = tmp_path / "data"
    async with served(data, shutdown_grace=str(GRACE), max_open_streams="2000") as server:
        turn_id = await server.start("1", agent="silent")
        finished = await server.start("100", agent="slow")
        assert (await server.whole(finished))[-1].event["outcome"] == "completed"
        loop = asyncio.get_running_loop()
        readers = [Reader(f"/v1/turns/{turn_id}/events") for _ in range(READERS)]
        async with asyncio.timeout(PATIENCE):
            for start in range(0, READERS, 100):
                batch = readers[start : start + 100]
                for reader in batch:
                    await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", server.port)
                await asyncio.gather(*(reader.began for reader in batch))
        asking = asyncio.create_task(server.http.post("/chat", json={"message": "1", "agent": "silent"}))
        polling = asyncio.create_task(server.http.get(f"/v1/turns/{turn_id}/events?after=3&wait=30"))
        async with asyncio.timeout(PATIENCE):
            while (await server.http.get("/readyz")).json()["running_turns"] < 2:
                pass
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(GRACE + PATIENCE):
            await server.process.wait()
            await asyncio.gather(*(reader.ended for reader in readers))
        assert server.process.returncode in (0, -signal.SIGTERM)
        for reader in readers:
            last = reader.frames()[-1]
            assert last.type == "reconnect"
            assert last.id is None
            assert 0 < last.event["retry_ms"] == last.retry
        assert (await asking).json()["error"]["outcome"] == "interrupted"
        await asyncio.gather(polling, return_exceptions=True)
    archive = SqliteArchive(data)
    ended = archive.turn(turn_id)
    assert (ended.phase, ended.outcome) == ("ended", "interrupted")
    assert archive.turn(finished).outcome == "completed"
    events = [logged.event for logged in await archive.read(turn_id, 0, 100)]
    assert [type(event).__name__ for event in events][-2:] == ["ErrorEvent", "DoneEvent"]
    assert {record.phase for record in archive.newest_turns(100)} == {"ended"}
    archive.close()
    assert not (data / "server.json").exists()


async def test_idle_server_stops_at_once(tmp_path: Path) -> None:
    async with served(tmp_path / "data", shutdown_grace="600") as server:
        async with server.ask("3", agent="slow") as stream:
            await stream.rest()
        server.process.send_signal(signal.SIGINT)
        # It does not wait for the grace to pass, which is ten minutes.
        async with asyncio.timeout(PATIENCE):
            await server.process.wait()


async def test_turn_within_the_grace_is_completed_and_can_be_resumed(tmp_path: Path) -> None:
    data, release = tmp_path / "data", tmp_path / "release"
    async with served(data, shutdown_grace="600") as server:
        async with server.ask(str(release), agent="held") as stream:
            await stream.until("token")
            server.process.send_signal(signal.SIGTERM)
            assert (await stream.rest())[-1].type == "reconnect"
        release.touch()
        async with asyncio.timeout(PATIENCE):
            await server.process.wait()
    seen = stream.seen[:-1]
    async with served(data) as server:
        async with server.events(stream.turn_id, last_id=seen[-1].id) as again:
            seen += await again.rest()
        assert seen == await server.whole(stream.turn_id)
    assert seen[-1].event["outcome"] == "completed"


async def test_agent_that_ignores_cancellation_does_not_keep_the_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data, shutdown_grace="0") as server:
        async with server.ask("Stop.", agent="stubborn") as stream:
            await stream.until("token")
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await server.process.wait()
    archive = SqliteArchive(data)
    assert archive.turn(stream.turn_id).outcome == "interrupted"
    archive.close()
