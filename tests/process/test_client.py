"""Tests of the Python client over killed and restarted servers: it finds the next one and reads each event once."""

import asyncio
from pathlib import Path

from tests.process.server_process import served
from tests.serving import PATIENCE, within
from turnwire.client import AsyncClient, ConnectionLost, ConnectionRestored, ReceivedEvent, ReconnectLimits
from turnwire.client import ServerAddress as Address
from turnwire.core.backoff import Backoff

LIMITS = ReconnectLimits(give_up_seconds=3 * PATIENCE, backoff=Backoff(first=0.01, longest=0.1))


async def test_reader_of_a_killed_server_reads_on_from_the_next_one(tmp_path: Path) -> None:
    address = Address("http://127.0.0.1:1", is_local=True)
    async with served(tmp_path / "data", agents=["unending"]) as server:
        address = Address(server.url, is_local=True)
        client = AsyncClient(lambda: address, limits=LIMITS)
        turn = await within(client.start("20"))
        updates = turn.updates()
        read = [await within(anext(updates)) for _ in range(300)]
        await server.kill()
        lost = await within(_next_but(updates, read))
        assert isinstance(lost, ConnectionLost)
    async with served(tmp_path / "data", agents=["unending"]) as server:
        address = Address(server.url, is_local=True)
        restored = await within(anext(updates))
        assert isinstance(restored, ConnectionRestored)
        async with asyncio.timeout(PATIENCE):
            read += [update async for update in updates]
        frames = await server.whole(turn.id)
        received = [(update.id, update.body.decode()) for update in read if isinstance(update, ReceivedEvent)]
        assert received == [(frame.id, frame.data) for frame in frames]
        assert (await client.snapshot(turn.id)).outcome == "interrupted"
        await client.close()


async def _next_but(updates, read):  # type: ignore[no-untyped-def]
    """Add the events that had arrived to `read`, and return the first update that is none."""
    async for update in updates:
        if not isinstance(update, ReceivedEvent):
            return update
        read.append(update)
    raise AssertionError("the turn has ended")
