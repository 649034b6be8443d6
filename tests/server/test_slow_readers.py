"""Slow readers: bounded memory, no delay for others, and a close that can be resumed from."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import PATIENCE, Frame, Puppet, Served, SseParser, let_time_pass, until
from turnwire.core.log.events import StatusEvent

STALLED = 100
PIECES = 2_000
PIECE = "x" * 1_000
MEGABYTE = 1024 * 1024
# Longer than any test takes: nobody is dropped until a test lets that time pass.
LONG = 600
STATM = Path("/proc/self/statm")


@asynccontextmanager
async def stalled_readers(server: Served, path: str, number: int) -> AsyncIterator[list[socket.socket]]:
    """Readers who ask and then take nothing."""
    sockets: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(number):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            reader.setblocking(False)
            await loop.sock_connect(reader, ("127.0.0.1", server.port))
            request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            await loop.sock_sendall(reader, request.encode())
            sockets.append(reader)
        yield sockets
    finally:
        for reader in sockets:
            reader.close()


async def open_streams(server: Served, number: int) -> None:
    """Waits until so many streams are open."""
    await until(lambda: server.turnwire.streams.open_count == number)


def every_stream_from_now_on(server: Served) -> list[object]:
    streams: list[object] = []
    connect = server.turnwire.streams.connect

    def kept(*arguments: Any, **options: Any) -> Any:
        streams.append(connect(*arguments, **options))
        return streams[-1]

    server.turnwire.streams.connect = kept  # type: ignore[method-assign]
    return streams


async def received_frames(reader: socket.socket) -> list[Frame]:
    """Return the whole frames in a stalled reader's socket after its connection is broken."""
    loop, received = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(PATIENCE):
            while chunk := await loop.sock_recv(reader, 65_536):
                received += chunk
    except ConnectionError:
        pass
    frames = SseParser().feed(unchunked(received.partition(b"\r\n\r\n")[2]))
    return [frame for frame in frames if frame.data is not None]


def unchunked(body: bytes) -> bytes:
    """Return the data of a chunked body that may end anywhere."""
    joined = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        if not size:
            break
        joined, body = joined + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return joined


async def all_blocked(server: Served, number: int) -> None:
    """Wait until so many open readers have data written to them that they have not taken."""
    await until(lambda: sum(connection.is_blocked for connection in server.turnwire.streams.connections) == number)


def resident_bytes() -> int:
    """Return the resident memory of this process, or its peak where the system reports no more."""
    if not STATM.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_stalled_readers_of_a_running_turn_have_bounded_memory_and_delay_nobody(
    serve: Serve, kind: StoreKind, puppet: Puppet
) -> None:
    async with serve(store=kind, write_timeout=LONG, max_open_streams=500) as server:
        turn_id = await server.start()
        part = await puppet.part()
        path = f"/v1/turns/{turn_id}/events"
        async with stalled_readers(server, path, STALLED) as stalled, server.events(turn_id) as normal:
            await open_streams(server, STALLED + 1)
            before = most = resident_bytes()
            for start in range(0, PIECES, 100):
                part.say(*(StatusEvent(f"{number} {PIECE}") for number in range(start, start + 100)))
                while (await normal.next()).position < start + 102:
                    pass
                normal.raw, most = b"", max(most, resident_bytes())
            await all_blocked(server, STALLED)
            let_time_pass(server.turnwire, LONG)
            await open_streams(server, 1)
            # What the log itself and the reader's copy of it take is in this too.
            assert max(most, resident_bytes()) - before < 64 * MEGABYTE
            part.end()
            assert (await normal.until("done"))[-1].event["outcome"] == "completed"
            assert [frame.position for frame in normal.seen] == list(range(1, PIECES + 5))
            for reader in stalled[::50]:
                received = await received_frames(reader)
                assert 2 <= len(received) < PIECES
                assert received == normal.seen[: len(received)]
                async with server.events(turn_id, last_id=received[-1].id) as again:
                    assert await again.rest() == normal.seen[len(received) :]


@pytest.mark.parametrize("of", ["turns", "sessions"])
async def test_stalled_readers_of_a_finished_turn_have_bounded_memory(serve: Serve, puppet: Puppet, of: str) -> None:
    async with serve(store="sqlite", write_timeout=LONG, max_open_streams=500) as server:
        async with server.ask() as asking:
            part = await puppet.part()
            part.say(*(StatusEvent(f"{number} {PIECE}") for number in range(PIECES)))
            part.end()
            frames = await asking.rest()
        path = f"/v1/{of}/{asking.turn_id if of == 'turns' else asking.session_id}/events"
        streams = every_stream_from_now_on(server)
        before = most = resident_bytes()
        async with stalled_readers(server, path, STALLED) as stalled, asyncio.timeout(PATIENCE):
            while len(streams) < STALLED or not all(
                reader.is_blocked for reader in server.turnwire.streams.connections
            ):
                await asyncio.sleep(0.01)
                most = max(most, resident_bytes())
            let_time_pass(server.turnwire, LONG)
            await open_streams(server, 0)
            most = max(most, resident_bytes())
            assert most - before < 100 * MEGABYTE
            received = await received_frames(stalled[0])
            async with server.events(asking.turn_id, after=received[-1].position) as again:
                assert [frame.data for frame in received + await again.rest()] == [frame.data for frame in frames]
