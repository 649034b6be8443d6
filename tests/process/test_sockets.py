"""Sockets of `turnwire serve` itself, over a restart and over a kill."""

import asyncio
import signal
from pathlib import Path

from tests.process.running import served
from tests.server.socket_client import positions, talking, text_of
from tests.serving import PATIENCE


async def test_a_socket_is_sent_away_and_its_turn_followed_on_after_the_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data, shutdown_grace="20") as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="300", agent="slow"))["turn_id"]
        seen = await talk.events(turn_id, until="token")
        server.process.send_signal(signal.SIGTERM)
        code, told = await talk.closed()
        assert (code, told[-1]["type"]) == (1012, "reconnect")
        seen += [one for one in told if one["type"] == "event"]
        async with asyncio.timeout(PATIENCE):
            await server.process.wait()
    async with served(data) as server, talking(server) as talk:
        await talk.ask("follow", turn_id=turn_id, after=seen[-1]["position"], epoch=seen[-1]["epoch"])
        seen += await talk.events(turn_id)
    assert text_of(seen) == "".join(f"{number} " for number in range(300))
    assert positions(seen) == list(range(1, len(seen) + 1))


async def test_what_a_socket_has_shown_survives_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="3000", agent="slow"))["turn_id"]
        await talk.events(turn_id, until="token")
        await server.kill()
        _, told = await talk.closed()
    seen = [one for one in told if one["type"] == "event"]
    async with served(data, lease="0.5") as server, talking(server) as talk:
        await talk.ask("follow", turn_id=turn_id)
        whole = await talk.events(turn_id)
    assert seen == [one for one in whole if seen and seen[0]["position"] <= one["position"] <= seen[-1]["position"]]
    assert whole[-1]["event"]["outcome"] == "interrupted"
