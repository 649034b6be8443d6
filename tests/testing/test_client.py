"""The client, the scripted model and recorded turns of `turnwire.testing`, with agents of every SDK and no key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, function_tool
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent

from tests.contracts.turns import BOUND
from turnwire import ChatCompletionsAgent, ask, tool
from turnwire.testing import ScriptedModel, calls, fails, open_client, recorded_turn, says, scripted_model


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"snow in {city}"


def build_own(url: str) -> Any:
    return ChatCompletionsAgent("small", base_url=url, api_key="none", tools=[weather], retries=0)


def build_openai_agents(url: str) -> Any:
    model = OpenAIChatCompletionsModel("small", AsyncOpenAI(base_url=url, api_key="none"))
    return Agent(name="Helper", model=model, tools=[function_tool(weather)])


def build_langgraph(url: str) -> Any:
    options: dict[str, Any] = {"model": "small", "base_url": url, "api_key": "none", "max_retries": 0}
    return create_agent(ChatOpenAI(**options, stream_usage=True), [weather])


def build_pydantic_ai(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("small", provider=OpenAIProvider(base_url=url, api_key="none"))
    return PydanticAgent(model, tools=[weather])


BUILDERS = (build_own, build_openai_agents, build_langgraph, build_pydantic_ai)


@pytest.mark.parametrize("build", BUILDERS)
async def test_agent_of_every_sdk_answers_a_client_in_this_process(
    build: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with scripted_model(calls(("weather", {"city": "Oslo"})), says("It is snowing.")) as model:
        model.keeps_alive = False
        agent = build(model.url)
        async with open_client(agent) as client:
            turn = await client.send("What is the weather?")
            assert (turn.outcome, turn.text) == ("completed", "It is snowing.")
            assert turn.tool_calls == [("weather", {"city": "Oslo"})]
            assert turn.usage is not None
            assert (turn.usage.input_tokens, turn.usage.output_tokens) == (22, 14)
            assert b"It" in turn.wire("ai_sdk")
            await client.record(turn, tmp_path / "turn.jsonl")
        recorded = recorded_turn(tmp_path / "turn.jsonl")
        assert (recorded.message, recorded.text) == ("What is the weather?", "It is snowing.")
        assert recorded.tool_calls == [("weather", {"city": "Oslo"})]
        assert recorded.check(build(model.url)).events == turn.log
        assert len(model.requests) == 2


async def test_conversation_approval_failure_and_unplanned_request() -> None:
    @tool(needs_approval=True)
    def send(to: str) -> str:
        """Send a letter."""
        return f"sent to {to}"

    async with scripted_model(
        says("Hello."), calls(("send", {"to": "bob"})), says("Not sent."), fails(400), says(usage=None)
    ) as model:
        agent = ChatCompletionsAgent("small", base_url=model.url, api_key="none", tools=[send], retries=0)
        async with open_client(agents={"helper": agent}) as client:
            first = await client.send("Hello", history=[], options={"a": 1})
            waiting = await client.send("Write to Bob", session_id=first.session_id)
            assert (waiting.outcome, [request.tool for request in waiting.approvals]) == (None, ["send"])
            turn = await client.decide(waiting, approved=False, reason="no")
            assert (turn.outcome, turn.text, turn.approvals) == ("completed", "Not sent.", [])
            assert [message["role"] for message in model.bodies[1]["messages"]] == ["user", "assistant", "user"]
            failed = await client.send("More")
            assert failed.outcome == "failed"
            assert failed.error is not None
            assert failed.response is None
            assert (await client.send("Nothing")).text == ""


async def test_turn_that_waits_for_more_answers_is_returned_at_once() -> None:
    @tool
    async def choose(what: str) -> str:
        """Let the user choose."""
        return await ask(f"Which {what}?")

    notes = [{"name": "note", "parameters": {"type": "object"}}]
    plan = (
        calls(("choose", {"what": "city"}), ("choose", {"what": "day"}), ids=["c1", "c2"]),
        calls(("note", {"n": 1}), ("note", {"n": 2}), ids=["n1", "n2"]),
        says("Done."),
    )
    async with scripted_model(*plan) as model, asyncio.timeout(BOUND):
        agent = ChatCompletionsAgent("small", base_url=model.url, api_key="none", tools=[choose], retries=0)
        async with open_client(agent) as client:
            turn = await client.send("Go", options={"client_tools": notes})
            assert len(turn.questions) == 2
            turn = await client.reply(turn, "Oslo")
            assert (turn.outcome, len(turn.questions)) == (None, 1)
            turn = await client.reply(turn, declined=True)
            assert [call.call_id for call in turn.client_calls] == ["n1", "n2"]
            turn = await client.send_tool_result(turn, "first")
            assert [call.call_id for call in turn.client_calls] == ["n2"]
            turn = await client.send_tool_result(turn, "second")
            assert (turn.outcome, turn.text) == ("completed", "Done.")


async def test_model_answers_whole_too() -> None:
    plan = [calls(("weather", {"city": "Oslo"}), text="Let me see."), says("It is snowing.")]
    async with scripted_model(*plan) as model, AsyncOpenAI(base_url=model.url, api_key="none") as client:
        (choice,) = (await client.chat.completions.create(model="small", messages=[])).choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        call: Any = (choice.message.tool_calls or [])[0]
        assert call.function.arguments == '{"city": "Oslo"}'
        assert (await client.responses.create(model="small", input="Hello")).output_text == "It is snowing."


def test_changed_agent_fails_with_both_sides(
    tmp_path: Path, scripted_model: ScriptedModel, agent_client: Any, recorded_turn: Any
) -> None:
    scripted_model.plan(calls(("weather", {"city": "Oslo"})), says("It is snowing."))
    agent = ChatCompletionsAgent("small", instructions="Be kind.", tools=[weather])
    client = agent_client(agent)
    turn = client.send("What is the weather?")
    assert turn.text == "It is snowing."
    path = tmp_path / "turn.jsonl"
    client.record(turn, path)
    recorded = recorded_turn(path)
    recorded.check(agent, update=True)  # From now on, the file has the text of the requests too.
    changed = ChatCompletionsAgent("small", instructions="Be rude.", tools=[weather])
    with pytest.raises(AssertionError, match=r"position 3: the model gets another request(.|\n)*Be kind(.|\n)*Be rude"):
        recorded_turn(path).check(changed)
    recorded_turn(path).check(changed, compare_prompts=False)
    recorded_turn(path).check(changed, update=True)
    recorded_turn(path).check(changed)
    with pytest.raises(AssertionError, match="Be rude"):
        recorded_turn(path).check(agent)


async def test_recording_is_checked_inside_a_running_event_loop(tmp_path: Path) -> None:
    async with scripted_model(says("Hello.")) as model:
        agent = build_own(model.url)
        async with open_client(agent) as client:
            await client.record(await client.send("Hi"), tmp_path / "turn.jsonl")
        recorded_turn(tmp_path / "turn.jsonl").check(agent)
