"""Tests of resumable agents in the next process: after `kill -9`, and after a stop during a turn."""

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

from tests.process.server_process import ServerProcess, served
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import PATIENCE, within
from turnwire.assembly import build_wires

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


# In its first process it does not get as far as the approval, however long it has.
DEMO = """
import asyncio

from turnwire.agents.demo import DemoAgent
from turnwire.core.journal.turn_journal import current_journal


class HeldDemo(DemoAgent):
    async def answer(self, turn):
        is_first = not current_journal().recording.calls
        async for event in super().answer(turn):
            yield event
            if is_first and getattr(event, "call_id", "") == "buy_tickets":
                await asyncio.Event().wait()


demo = HeldDemo(pace=0)
"""


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
    for wire in build_wires():
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


async def test_killed_demo_continues_and_waits_for_approval(tmp_path: Path) -> None:
    """Do what the README says: kill the server in the middle of the demo and start it again."""
    data = tmp_path / "data"
    (tmp_path / "quick_demo.py").write_text(DEMO)
    async with (
        served(data, "--agent", "quick_demo:demo", agents=()) as server,
        server.ask("Plan a day on the island.") as stream,
    ):
        # The script ends with a thought, which the kill makes void.
        frames = await stream.until("tool_result")
        while "so a person decides" not in "".join(frame.event.get("content", "") for frame in frames):
            frames = [*frames, await stream.next()]
        await server.kill()
    async with served(data, "--agent", "quick_demo:demo", agents=()) as server:
        async with server.events(stream.turn_id, last_id=stream.seen[-1].id) as again:
            frames = await again.until("approval_request")
            assert [frame.type for frame in frames].count("restart") == 1
            request = frames[-1].event
            path = f"/v1/turns/{stream.turn_id}/approvals/{request['call_id']}"
            await server.http.post(path, json={"approved": True, "args": request["args"]})
            frames += await again.rest()
        assert frames[-1].event["outcome"] == "completed"
        assert "You approved the purchase" in frames[-2].event["content"]
        results = [frame.event["call_id"] for frame in [*stream.seen, *frames] if frame.type == "tool_result"]
        assert len(results) == len(set(results))


async def test_bare_server_offers_the_demo_beside_the_documents(tmp_path: Path) -> None:
    async with served(tmp_path / "data", agents=()) as server:
        agents = (await server.http.get("/v1/agents")).json()["agents"]
        assert [agent["name"] for agent in agents] == ["documents", "demo"]
    async with served(tmp_path / "data", agents=["slow"]) as server:
        agents = (await server.http.get("/v1/agents")).json()["agents"]
        assert [agent["name"] for agent in agents] == ["slow"]
    async with served(tmp_path / "data", "--demo", agents=()) as server, server.ask("Buy tickets.") as stream:
        assert (await stream.until("approval_request"))[0].event["agent"] == "demo"
