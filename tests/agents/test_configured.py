"""Agents by name, from the settings and from code; and the end of all of them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_model import ScriptedModel, calls, model_server, says, scripted_model
from tests.serving import quick_settings, saying, serving, until
from tests.tools.mcp_servers import SCRIPT, web
from turnwire import ChatCompletionsAgent, Turn, Turnwire, tool

__all__ = ["model_server"]

HERE = __name__


@tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"


async def echo(turn: Turn) -> AsyncIterator[str]:
    yield turn.message.upper()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings name this module's functions by its name."""
    monkeypatch.setitem(sys.modules, "agents_of_the_test", sys.modules[HERE])


def turnwire_with(folder: Path, model: ScriptedModel, agents: dict[str, Any], **more: Any) -> Turnwire:
    options = {name: more.pop(name) for name in ("agent",) if name in more}
    settings = quick_settings(folder, model="small", model_url=model.url, agents=agents, **more)
    return Turnwire(store="memory", settings=settings, **options)


async def ask(server: Any, agent: str | None = None, message: str = "Hello") -> dict[str, Any]:
    answer = await server.http.post("/chat", json={"message": message, **({"agent": agent} if agent else {})})
    assert answer.status_code == 200, answer.text
    return answer.json()


# Who answers


async def test_agents_of_the_settings_are_chosen_by_their_names(tmp_path: Path, model_server: ScriptedModel) -> None:
    agents = {
        "helper": {"instructions": "Be kind.", "tools": ["agents_of_the_test:weather", "fetch_url"], "max_steps": 2},
        "parrot": "agents_of_the_test:echo",
    }
    model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."), says("Hello."))
    async with serving(turnwire_with(tmp_path, model_server, agents)) as server:
        answer = await ask(server, "helper")
        assert (answer["content"], answer["tools_used"]) == ("Sunny.", ["weather"])
        assert (await ask(server, "parrot"))["content"] == "HELLO"
        assert (await ask(server))["content"] == "Hello."  # The first one answers by default.
    body = model_server.bodies[0]
    assert body["model"] == "small"
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "fetch_url"]


async def test_those_given_in_code_come_first_and_keep_their_names(tmp_path: Path, model_server: ScriptedModel) -> None:
    agents = {"default": {"instructions": "Never asked."}, "parrot": "agents_of_the_test:echo"}
    turnwire = turnwire_with(
        tmp_path, model_server, agents, agent=saying("From code."), documents={"paths": [tmp_path]}
    )
    assert list(turnwire.agents) == ["default", "parrot", "documents"]
    async with serving(turnwire) as server:
        assert (await ask(server))["content"] == "From code."
    assert not model_server.requests


def test_an_agent_of_the_settings_is_enough_for_a_server(tmp_path: Path, model_server: ScriptedModel) -> None:
    assert list(turnwire_with(tmp_path, model_server, {"helper": {}}).agents) == ["helper"]


async def test_each_may_have_a_model_of_its_own_and_no_key_goes_astray(
    tmp_path: Path, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    monkeypatch.setenv("KEY_OF_OTHER", "key-of-other")
    async with scripted_model(says("1"), says("2")) as other:
        model_server.plan(says("3"))
        agents = {
            "same": {},
            "stranger": {"model": "large", "model_url": other.url, "model_api": "responses"},
            "other": {"model": "large", "model_url": other.url, "model_key_env": "KEY_OF_OTHER"},
        }
        async with serving(turnwire_with(tmp_path, model_server, agents, model_key="key-of-ours")) as server:
            for name in agents:
                await ask(server, name)
    assert [request.headers["authorization"] for request in model_server.requests] == ["Bearer key-of-ours"]
    assert [request.headers["authorization"] for request in other.requests] == ["Bearer none", "Bearer key-of-other"]
    assert [request.path for request in other.requests] == ["/v1/responses", "/v1/chat/completions"]
    assert {request.body["model"] for request in other.requests} == {"large"}


@pytest.mark.process
async def test_agents_share_the_mcp_servers_that_the_settings_name(
    tmp_path: Path, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_TOKEN", "open-sesame")
    monkeypatch.setenv("SCRIPT", str(SCRIPT))
    async with web(token="open-sesame") as there:
        servers = {
            "web": {"type": "http", "url": there.url, "headers": {"Authorization": "Bearer ${WEB_TOKEN}"}},
            "local": {"command": sys.executable, "args": ["${SCRIPT}"], "prefix": "local_", "tools": ["weather"]},
            "unused": {"command": "no-such-program"},
        }
        agents = {"one": {"mcp": ["web", "local"]}, "two": {"mcp": ["web"]}}
        both = calls(("weather", {"city": "Oslo"}), ("local_weather", {"city": "Rome"}))
        model_server.plan(both, says("Sunny."), calls(("facts", {})), says("Two cities."))
        async with serving(turnwire_with(tmp_path, model_server, agents, mcp_servers=servers)) as server:
            assert sorted((await ask(server, "one"))["tools_used"]) == ["local_weather", "weather"]
            assert (await ask(server, "two"))["tools_used"] == ["facts"]
    assert [headers["mcp-method"] for headers in there.seen].count("server/discover") == 1
    assert "open-sesame" not in repr(server.turnwire.settings)


# What cannot be


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("nothing", "'nothing' is not of the form module:name"),
        ("no_such_module:agent", "'no_such_module' cannot be imported"),
        ("agents_of_the_test:weather", "is not an agent"),
        ({"tools": ["agents_of_the_test:HERE"]}, "is not a callable object"),
        ({"tools": ["agents_of_the_test:nothing"]}, "'agents_of_the_test' has no 'nothing'"),
        ({"model_url": "localhost"}, "its address must be like"),
        ({"model_key_env": "NO_SUCH_VARIABLE"}, "the environment variable NO_SUCH_VARIABLE is not set"),
        ({"mcp": ["secretive"]}, "the environment variable NO_SUCH_TOKEN is not set"),
    ],
    ids=str,
)
def test_an_agent_that_cannot_be_made_is_refused_by_name(
    tmp_path: Path, model_server: ScriptedModel, wanted: Any, why: str
) -> None:
    servers = {"secretive": {"url": "https://example.org/mcp", "headers": {"X-Key": "${NO_SUCH_TOKEN}"}}}
    with pytest.raises(ValueError, match=f"the agent 'helper' of the settings cannot be made: .*{why}"):
        turnwire_with(tmp_path, model_server, {"helper": wanted}, mcp_servers=servers)


def test_an_agent_needs_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the agent has no model; set its `model`, or TURNWIRE_MODEL for all agents"):
        Turnwire(store="memory", settings=quick_settings(tmp_path, agents={"helper": {}}))


def test_a_missing_extra_is_named_with_what_installs_it(
    tmp_path: Path, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("turnwire.tools.mcp.transports", raising=False)
    monkeypatch.setitem(sys.modules, "turnwire.tools.mcp.transports", None)
    with pytest.raises(ValueError, match=r"'helper' .*pip install 'turnwire\[mcp\]'"):
        turnwire_with(tmp_path, model_server, {"helper": {"mcp": ["x"]}}, mcp_servers={"x": {"command": "x"}})


# The end


class Closable:
    """An agent whose end can be seen."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self._error = error

    async def close(self) -> None:
        self.closed += 1
        if self._error is not None:
            raise self._error


class Yielding(Closable):
    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        yield "Yielded."


class Returning(Closable):
    async def answer(self, turn: Turn) -> str:
        return "Returned."


async def test_every_agent_that_can_be_closed_is_closed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agents = {"a": Yielding(), "b": Returning(), "c": Yielding(OSError("stuck")), "d": saying("No close.")}
    turnwire = Turnwire(agents={**agents, "again": agents["a"]}, settings=quick_settings(tmp_path))
    async with serving(turnwire) as server:
        assert (await ask(server, "b"))["content"] == "Returned."
        assert not any(agents[name].closed for name in "abc")
    assert [agents[name].closed for name in "abc"] == [1, 1, 1]
    assert "an agent could not be closed" in caplog.text
    await turnwire.close()
    assert agents["a"].closed == 1


async def test_the_connections_of_a_models_agent_are_closed(tmp_path: Path, model_server: ScriptedModel) -> None:
    model_server.plan(says("Hello."))
    agent = ChatCompletionsAgent("small", base_url=model_server.url)
    async with serving(Turnwire(agent, store="memory", settings=quick_settings(tmp_path))) as server:
        await ask(server)
        assert model_server.open_connections == 1
    await until(lambda: model_server.open_connections == 0)


async def test_the_documents_agent_is_closed_also_if_another_has_its_name(
    tmp_path: Path, model_server: ScriptedModel
) -> None:
    turnwire = turnwire_with(
        tmp_path, model_server, {"documents": "agents_of_the_test:echo"}, documents={"paths": [tmp_path]}
    )
    async with serving(turnwire) as server:
        assert (await ask(server, "documents"))["content"] == "HELLO"
    assert not [task for task in asyncio.all_tasks() if "mcp" in task.get_name()]
