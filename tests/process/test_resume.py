"""Tests of resumable agents in the next process: after `kill -9`, and after a stop during a turn."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

from tests.process.server_process import ServerProcess, served
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import PATIENCE, within
from turnwire.assembly import WIRES

__all__ = ["model_server"]

TOOLS = '''
from pathlib import Path

from turnwire import tool


@tool
def look(city: str) -> str:
    """Look out of a window."""
    with Path("done.txt").open("a") as done:
        done.write(f"{city}\\n")
    return "snow"
'''


def configure(folder: Path, model: ScriptedModel) -> Path:
    (folder / "tools_of_the_test.py").write_text(TOOLS)
    config = folder / "turnwire.toml"
    config.write_text(
        "[agents.helper]\n"
        f'model = "small"\nmodel_url = "{model.url}"\ntools = ["tools_of_the_test:look"]\non_crash = "resume"\n'
    )
    return config


async def check_all_wires(server: ServerProcess, turn_id: str, session_id: str) -> None:
    """Assert that only wires with a `restart` event show the text that it takes back."""
    snapshot = (await server.http.get(f"/v1/turns/{turn_id}")).json()
    assert (snapshot["state"]["text"], len(snapshot["state"]["steps"])) == ("Snow in Oslo.", 1)
    for wire in WIRES:
        body = (await server.http.get(f"/v1/turns/{turn_id}/events", params={"wire": wire})).text
        assert ("Void" in body, '"type":"restart"' in body) == (wire == "sse_chat",) * 2, wire
    async with server.http.stream("GET", f"/v1/sessions/{session_id}/events") as stream:
        body = ""
        async with asyncio.timeout(PATIENCE):
            async for piece in stream.aiter_text():
                body += piece
                if '"type":"done"' in body:
                    break
    assert body.index("Void") < body.index('"type":"restart"') < body.index("Snow in Oslo.")


async def test_killed_turn_resumes_after_its_last_finished_step(tmp_path: Path, model_server: ScriptedModel) -> None:
    data, config = tmp_path / "data", configure(tmp_path, model_server)
    model_server.plan(calls(("look", {"city": "Oslo"})), says("Void", asyncio.Event()), says("Snow in Oslo."))
    async with (
        served(data, "--config", config, agents=()) as server,
        server.ask("How is it?", agent="helper") as stream,
    ):
        await stream.until("token")
        await server.kill()
    async with served(data, "--config", config, agents=()) as server:
        async with server.events(stream.turn_id, last_id=stream.seen[-1].id) as again:
            frames = await again.rest()
        assert frames[0].type == "restart"
        assert [frame.type for frame in frames[-2:]] == ["response", "done"]
        assert frames[-2].event["content"] == "Snow in Oslo."
        result = next(frame for frame in stream.seen if frame.type == "tool_result")
        assert frames[0].event["from_position"] == result.position
        await check_all_wires(server, stream.turn_id, stream.session_id)
    assert (tmp_path / "done.txt").read_text() == "Oslo\n"
    assert model_server.bodies[2]["messages"] == model_server.bodies[1]["messages"]


async def test_stopped_server_hands_over_a_turn_after_its_step(tmp_path: Path, model_server: ScriptedModel) -> None:
    data, config, gate = tmp_path / "data", configure(tmp_path, model_server), asyncio.Event()
    asks = calls(("look", {"city": "Oslo"}))
    model_server.plan(replace(asks, pieces=("Looking.", gate, *asks.pieces)), says("Snow."))
    async with served(data, "--config", config, agents=(), shutdown_grace="60") as server:
        async with server.ask("How is it?", agent="helper") as stream:
            await stream.until("token")
            server.process.send_signal(signal.SIGTERM)
            assert (await stream.rest())[-1].type == "reconnect"
        gate.set()
        await within(server.process.wait())
        assert len(model_server.bodies) == 1
    async with served(data, "--config", config, agents=()) as server:
        frames = await server.whole(stream.turn_id)
    assert "restart" not in [frame.type for frame in frames]
    assert frames[-2].event["content"] == "Looking.\n\nSnow."
    assert (tmp_path / "done.txt").read_text() == "Oslo\n"
