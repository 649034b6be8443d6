"""Evaluations: another model in the agents of each SDK, and tools that are answered from the recording."""

import asyncio
from typing import Any

import pytest

from tests.contracts.turns import BOUND
from tests.testing.test_client import build_langgraph, build_openai_agents, build_own, build_pydantic_ai
from turnwire import ChatCompletionsAgent, ask, tool
from turnwire.agents.loader import as_agent
from turnwire.models.address import locate_model
from turnwire.recordings.recording import decode_recording, encode_recording
from turnwire.testing import calls, open_client, says, scripted_model
from turnwire.testing.evaluation import NOT_RECORDED, evaluate_turn


@pytest.mark.parametrize("build", [build_own, build_openai_agents, build_pydantic_ai])
async def test_agent_with_another_model_is_otherwise_the_same(build: Any) -> None:
    plan = calls(("weather", {"city": "Oslo"})), says("It is snowing.")
    async with scripted_model(*plan, *plan) as model:
        model.keeps_alive = False
        agent: Any = as_agent(build(model.url))
        other = agent.with_model(locate_model("other", model.url, "none"))
        for each, name in ((other, "other"), (agent, "small")):
            async with open_client(each) as client:
                assert (await client.send("What is the weather?")).text == "It is snowing."
            assert [body["model"] for body in model.bodies[-2:]] == [name, name]
        assert model.bodies[0]["tools"] == model.bodies[2]["tools"]


def test_agent_that_names_its_model_itself_has_no_other() -> None:
    assert not hasattr(as_agent(build_langgraph("http://localhost:1")), "with_model")


@pytest.mark.parametrize("build", [build_own, build_openai_agents])
async def test_tools_are_answered_by_name_and_arguments(build: Any) -> None:
    plan = calls(("weather", {"city": "Oslo"}), ids=["a1"]), says("It is snowing.")
    again = (
        calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})),
        says("It is."),
    )
    async with scripted_model(*plan, *again) as model:
        model.keeps_alive = False
        async with open_client(agents={"helper": build(model.url)}) as client:
            turn = await client.send("What is the weather?")
            recording = decode_recording(encode_recording(await client.record(turn)))
            compared = await evaluate_turn(client, "turn", recording, agent="helper")
        assert compared.differences == ["answer", "tools"]
        assert [message["content"] for message in model.bodies[-1]["messages"] if message["role"] == "tool"] == [
            "snow in Oslo",
            NOT_RECORDED,
            "snow in Oslo",
        ]


async def test_recorded_decisions_are_repeated_and_other_calls_denied() -> None:
    sent: list[str] = []

    @tool(needs_approval=True)
    def send(to: str) -> str:
        """Send a letter."""
        sent.append(to)
        return f"sent to {to}"

    @tool(needs_approval=True)
    def burn(what: str) -> str:
        """Burn a letter."""
        sent.append(what)
        return "burnt"

    plan = calls(("send", {"to": "bob"}), ids=["a1"]), says("Sent.")
    async with scripted_model(*plan, *plan, calls(("burn", {"what": "it"})), says("Kept.")) as model:
        agent = ChatCompletionsAgent("small", base_url=model.url, api_key="none", tools=[send, burn])
        async with open_client(agents={"helper": agent}) as client:
            turn = await client.decide(await client.send("Send it"), approved=True)
            recording = await client.record(turn)
            assert (await evaluate_turn(client, "turn", recording, agent="helper")).differences == []
            other = await evaluate_turn(client, "turn", recording, agent="helper")
            assert (other.now.answer, other.differences) == ("Kept.", ["answer", "tools"])
    assert sent == ["bob"]


@pytest.mark.parametrize("run_tools", [True, False])
async def test_recorded_replies_and_results_of_the_client_are_repeated(run_tools: bool) -> None:
    @tool
    async def choose(what: str) -> str:
        """Let the user choose."""
        return await ask(f"Which {what}?")

    choice, note = calls(("choose", {"what": "city"}), ids=["c1"]), calls(("note", {"n": 1}), ids=["n1"])
    others = calls(("choose", {"what": "day"}), ("note", {"n": 2}), ids=["c2", "n2"])
    plan = choice, note, says("Noted.")
    async with scripted_model(*plan, *plan, others, says("Nothing.")) as model, asyncio.timeout(BOUND):
        agent = ChatCompletionsAgent("small", base_url=model.url, api_key="none", tools=[choose])
        async with open_client(agents={"helper": agent}) as client:
            options = {"client_tools": [{"name": "note", "parameters": {"type": "object"}}], "temperature": 0.5}
            turn = await client.reply(await client.send("Go", options=options), "Oslo")
            recording = await client.record(await client.send_tool_result(turn, "noted"))
            same = await evaluate_turn(client, "turn", recording, agent="helper", run_tools=run_tools)
            other = await evaluate_turn(client, "turn", recording, agent="helper", run_tools=run_tools)
        assert same.differences == []
        assert (other.now.outcome, other.now.answer) == ("completed", "Nothing.")
        sent = [[each["content"] for each in body["messages"] if each["role"] == "tool"] for body in model.bodies]
        assert sent[2] == sent[5] == ["Oslo", "noted"]
        declined = "Error: the user did not answer the question" if run_tools else NOT_RECORDED
        assert sent[7] == [declined, NOT_RECORDED]


async def test_recording_with_a_response_format_is_evaluated() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    plan = says('{"city": "Oslo"}')
    async with scripted_model(plan, plan) as model:
        agent = ChatCompletionsAgent("small", base_url=model.url, api_key="none")
        async with open_client(agents={"helper": agent}) as client:
            turn = await client.send("Where?", options={"response_format": form})
            recording = await client.record(turn)
            assert (await evaluate_turn(client, "turn", recording, agent="helper")).differences == []
        assert model.bodies[1] == model.bodies[0]
