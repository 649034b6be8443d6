"""Tests of WebSockets over a restart and a kill of `turnwire serve`."""

import asyncio
import signal
from pathlib import Path

from tests.process.server_process import served
from tests.server.socket_client import positions, talking, text_of
from tests.serving import PATIENCE


async def test_socket_is_asked_to_reconnect_and_follows_its_turn_after_the_restart(tmp_path: Path) -> None:
    data, release = tmp_path / "data", tmp_path / "release"
    async with served(data, shutdown_grace="600") as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message=str(release), agent="held"))["turn_id"]
        seen = await talk.events(turn_id, until="token")
        server.process.send_signal(signal.SIGTERM)
        code, messages = await talk.closed()
        assert (code, messages[-1]["type"]) == (1012, "reconnect")
        release.touch()
        seen += [message for message in messages if message["type"] == "event"]
        async with asyncio.timeout(PATIENCE):
            await server.process.wait()
    async with served(data) as server, talking(server) as talk:
        await talk.ask("follow", turn_id=turn_id, after=seen[-1]["position"], epoch=seen[-1]["epoch"])
        seen += await talk.events(turn_id)
    assert text_of(seen) == "Well, done."
    assert positions(seen) == list(range(1, len(seen) + 1))


async def test_events_shown_on_a_socket_survive_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="400", agent="unending"))["turn_id"]
        await talk.events(turn_id, until="token")
        await server.kill()
        _, messages = await talk.closed()
    seen = [message for message in messages if message["type"] == "event"]
    async with served(data) as server, talking(server) as talk:
        await talk.ask("follow", turn_id=turn_id)
        whole = await talk.events(turn_id)
    assert seen == [
        message for message in whole if seen and seen[0]["position"] <= message["position"] <= seen[-1]["position"]
    ]
    assert whole[-1]["event"]["outcome"] == "interrupted"
