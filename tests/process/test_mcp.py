"""`turnwire mcp` over stdio, driven by the official client: in its own process, and as a relay to a server."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters

from tests.process.server_process import AGENTS, environment, run, served
from tests.process.test_resume import configure
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import until, within

__all__ = ["model_server"]

Era = Literal["auto", "legacy"]


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "mcp-server.md"


def guide_arguments() -> list[str]:
    """Return the arguments of the program that the guide tells hosts to start."""
    block = re.search(r"^```json\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    program = json.loads(block[1])["mcpServers"]["agents"]
    assert program["command"] == "turnwire"
    return program["args"]


@asynccontextmanager
async def mcp_program(folder: Path, *options: str | Path, era: Era = "auto", **callbacks: Any) -> AsyncIterator[Client]:
    arguments = ["-m", "turnwire", *guide_arguments(), "--data", folder / "data", *options]
    program = StdioServerParameters(
        command=sys.executable, args=[*map(str, arguments)], env=environment(), cwd=str(folder)
    )
    async with Client(program, mode=era, **callbacks) as client:
        yield client


async def approve(context: Any, question: Any) -> types.ElicitResult:
    assert question.message == 'Allow the call of pay with {"amount":40}?'
    return types.ElicitResult(action="accept", content={"approve": True})


async def check_approval(client: Client) -> None:
    result = await within(client.call_tool("ask_careful", {"message": "Buy it"}))
    assert result.structured_content is not None
    assert result.structured_content["text"].startswith("May I? Yes, ")


@pytest.mark.rotated("era")
@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_embedded_agents_are_tools_and_ask_for_approval(tmp_path: Path, era: Era) -> None:
    (tmp_path / "agents_of_the_test.py").write_text(AGENTS)
    agent = "careful=agents_of_the_test:careful"
    async with mcp_program(tmp_path, "--agent", agent, era=era, elicitation_callback=approve) as client:
        assert "ask_careful" in {tool.name for tool in (await client.list_tools()).tools}
        await check_approval(client)


async def test_relay_passes_on_progress_and_questions_and_outlives_a_killed_server(
    tmp_path: Path, model_server: ScriptedModel
) -> None:
    data, config, lines = tmp_path / "data", configure(tmp_path, model_server), list[str]()
    model_server.plan(calls(("look", {"city": "Oslo"})), says("Void", asyncio.Event()), says("Snow in Oslo."))

    async def report(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message or "")

    # A server that runs already is found by its data folder.
    async with served(data, "--config", config, agents=["careful"]) as server:
        async with mcp_program(tmp_path, era="legacy", elicitation_callback=approve) as legacy:
            await check_approval(legacy)
        async with mcp_program(tmp_path, elicitation_callback=approve) as client:
            await check_approval(client)
            calling = asyncio.create_task(
                client.call_tool("ask_helper", {"message": "How is it?"}, progress_callback=report)
            )
            await until(lambda: "Void" in lines)
            assert lines[1:3] == ["look: started", "look: done"]
            await server.kill()
            lost = await within(calling)
            assert lost.is_error
            assert lost.structured_content is not None
            assert lost.structured_content["error"]["code"] == "server_lost"
            turn_id = lost.structured_content["turn_id"]
            assert turn_id == lines[0].split()[1]
            async with served(data, "--config", config, agents=["careful"]):
                result = await within(client.call_tool("get_turn", {"turn_id": turn_id}))
    assert [content.text for content in result.content if isinstance(content, types.TextContent)] == ["Snow in Oslo."]


async def test_host_over_http_gets_the_rest_of_a_call_from_the_next_server(
    tmp_path: Path, model_server: ScriptedModel
) -> None:
    data, config, lines = tmp_path / "data", configure(tmp_path, model_server), list[str]()
    model_server.plan(calls(("look", {"city": "Oslo"})), says("Void", asyncio.Event()), says("Snow in Oslo."))

    async def report(progress: float, total: float | None, message: str | None) -> None:
        lines.append(message or "")

    async with served(data, "--config", config, agents=[]) as server, Client(f"{server.url}/mcp") as client:
        call = client.call_tool("ask_helper", {"message": "How is it?"}, progress_callback=report)
        calling = asyncio.create_task(call)
        await until(lambda: "Void" in lines)
        await server.kill()
        with pytest.raises(MCPError):
            await within(calling)
    async with served(data, "--config", config, agents=[]) as server, Client(f"{server.url}/mcp") as client:
        result = await within(client.call_tool("get_turn", {"turn_id": lines[0].split()[1]}))
    assert result.structured_content is not None
    assert (result.structured_content["text"], result.structured_content["status"]) == ("Snow in Oslo.", "completed")


async def test_server_that_is_away_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    done = await run("mcp", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert done.code == 1
    assert "http://127.0.0.1:9/mcp was not reached" in done.err
    assert not done.out
