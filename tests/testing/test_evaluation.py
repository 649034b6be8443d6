"""Evaluations: another model in the agents of each SDK, and tools that are answered from the recording."""

from typing import Any

import pytest

from tests.testing.test_client import build_langgraph, build_openai_agents, build_own, build_pydantic_ai
from turnwire import ChatCompletionsAgent, tool
from turnwire.agents.loader import as_agent
from turnwire.core.recording import decode_recording, encode_recording
from turnwire.models.address import locate_model
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
