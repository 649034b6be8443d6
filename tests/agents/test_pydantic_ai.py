"""Tests that are special to Pydantic AI; the contract suite has the rest."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, PromptedOutput, RunContext, UsageLimits
from pydantic_ai import CustomEvent as SdkCustomEvent
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError
from pydantic_ai.messages import ModelMessage, NativeToolCallPart, NativeToolReturnPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.core.desk import open_actor_desk, open_desk
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.agents.loader import as_agent
from turnwire.agents.pydantic_ai import PydanticAIAgent
from turnwire.agents.pydantic_ai.messages import sdk_messages
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import AgentError, ModelError, ToolError
from turnwire.core.log.events import (
    CustomEvent,
    Event,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.files import LoadedFiles
from turnwire.core.log.turns import Message, ToolRequest, Turn
from turnwire.stores.memory import MemoryStore
from turnwire.tools import progress

__all__ = ["model_server"]

TURN = Turn(id="t1", session_id="s1", principal="ann", message="hello")


async def answered(agent: Any, turn: Turn = TURN) -> list[Event | str]:
    return [event async for event in agent.answer(turn)]


def only(events: list[Event | str], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def text(events: list[Event | str]) -> str:
    return "".join(only(events, str))


def one_call(tool: str, arguments: str = "{}") -> FunctionModel:
    """A model that calls a tool and then says what it was given."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        if len(messages) == 1:
            yield {0: DeltaToolCall(name=tool, json_args=arguments, tool_call_id="c1")}
        else:
            (result,) = (part for part in messages[-1].parts if isinstance(part, ToolReturnPart))
            for word in ("I ", "was ", "told: ", str(result.content)):
                yield word

    return FunctionModel(stream_function=stream)


@pytest.fixture
async def model(model_server: ScriptedModel) -> AsyncIterator[OpenAIChatModel]:
    """A model that asks the scripted server."""
    client = AsyncOpenAI(base_url=model_server.url, api_key="none", max_retries=0)
    yield OpenAIChatModel("small", provider=OpenAIProvider(openai_client=client))
    await client.close()


async def test_a_model_that_is_a_function_answers() -> None:
    agent: Agent[None, str] = Agent(one_call("add", '{"a": 1, "b": 2}'))

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    events = await answered(as_agent(agent))
    assert only(events, ToolCallEvent) == [ToolCallEvent("c1", "add", {"a": 1, "b": 2})]
    (result,) = only(events, ToolResultEvent)
    assert (result.success, result.result) == (True, 3)
    assert text(events) == "I was told: 3"


async def test_the_sdks_test_model_answers() -> None:
    agent: Agent[None, str] = Agent(TestModel(custom_output_text="All fine."))

    @agent.tool_plain
    def look() -> str:
        return "nothing"

    events = await answered(as_agent(agent))
    assert [event.tool for event in only(events, ToolResultEvent)] == ["look"]
    assert text(events) == "All fine."
    assert only(events, UsageEvent)


async def test_what_is_given_for_the_run_reaches_it() -> None:
    agent: Agent[str, str] = Agent(one_call("whose"), deps_type=str)

    @agent.tool
    def whose(context: RunContext[str]) -> str:
        return f"{context.deps}'s, in {context.conversation_id}"

    assert text(await answered(PydanticAIAgent(agent, deps="Ada"))) == "I was told: Ada's, in s1"
    with pytest.raises(AgentError) as caught:
        await answered(PydanticAIAgent(agent, deps="Ada", usage_limits=UsageLimits(request_limit=1)))
    assert caught.value.code == "max_turns"


async def test_a_tool_may_know_who_asks() -> None:
    agent: Agent[Turn, str] = Agent(one_call("whoami"), deps_type=Turn)

    @agent.tool
    async def whoami(context: RunContext[Turn]) -> str:
        return context.deps.principal

    assert text(await answered(PydanticAIAgent(agent, to_deps=lambda turn: turn))) == "I was told: ann"


async def test_an_answer_that_is_a_value_is_told_as_json() -> None:
    class City(BaseModel):
        name: str
        people: int

    agent = Agent(TestModel(custom_output_args={"name": "Oslo", "people": 700_000}), output_type=City)
    assert text(await answered(as_agent(agent))) == '{"name":"Oslo","people":700000}'


async def test_tools_that_run_at_the_provider_and_thoughts_are_told() -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield {0: NativeToolCallPart("web_search", {"query": "tea"}, "n1", provider_name="function")}
        yield {1: NativeToolReturnPart("web_search", {"hits": 2}, "n1", provider_name="function")}
        yield {2: DeltaThinkingPart(content="Hm.")}
        yield "Green."

    events = await answered(as_agent(Agent(FunctionModel(stream_function=stream))))
    assert events[0] == ToolCallEvent("n1", "web_search", {"query": "tea"})
    (result,) = only(events, ToolResultEvent)
    assert (result.call_id, result.success, result.result) == ("n1", True, {"hits": 2})
    assert only(events, ReasoningEvent) == [ReasoningEvent("Hm.")]
    assert text(events) == "Green."


async def test_an_event_of_the_applications_own_is_told() -> None:
    @dataclass(kw_only=True)
    class TastedEvent(SdkCustomEvent, name="tasted"):
        cups: int

    agent: Agent[None, str] = Agent(one_call("taste"))

    @agent.tool
    async def taste(context: RunContext[Any]) -> str:
        await context.emit(TastedEvent(cups=2))
        return "good"

    events = await answered(as_agent(agent))
    assert only(events, CustomEvent) == [CustomEvent(name="tasted", data={"cups": 2})]


async def test_a_tool_tells_how_far_it_is(store: Store) -> None:
    agent: Agent[None, str] = Agent(one_call("look"))

    @agent.tool_plain
    async def look() -> str:
        progress("half way", 0.5)
        return "done"

    adapter = as_agent(agent)

    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        async for event in adapter.answer(turn):
            yield event

    async with open_desk(store, answer) as desk:
        events = await desk.events(await desk.start())
    kinds = [type(event) for event in events if isinstance(event, ToolCallEvent | ToolProgressEvent | ToolResultEvent)]
    assert kinds == [ToolCallEvent, ToolProgressEvent, ToolResultEvent]
    assert ToolProgressEvent("c1", "half way", 0.5) in events


async def test_a_long_result_is_cut_in_the_log_and_not_for_the_model() -> None:
    agent: Agent[None, str] = Agent(one_call("read"))

    @agent.tool_plain
    async def read() -> str:
        return "word " * 100_000

    events = await answered(as_agent(agent))
    (result,) = only(events, ToolResultEvent)
    assert len(result.result) < 21_000
    assert "500,000 characters in all" in result.result
    assert len(text(events)) > 500_000


@pytest.mark.parametrize("error", [ToolError("there is no such city"), ModelRetry("there is no such city")])
async def test_what_a_tool_raises_for_the_model_is_read_by_it(error: Exception) -> None:
    agent: Agent[None, str] = Agent(one_call("look"))

    @agent.tool_plain
    async def look() -> str:
        raise error

    events = await answered(as_agent(agent))
    (result,) = only(events, ToolResultEvent)
    assert not result.success
    assert "there is no such city" in str(result.result)
    assert "there is no such city" in text(events)


async def test_a_tool_of_half_an_answer_does_not_run(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    model_server.plan(replace(calls(("look", {})), ending="unfinished"))
    agent: Agent[None, str] = Agent(model)

    @agent.tool_plain
    async def look() -> str:
        raise AssertionError("it ran")

    with pytest.raises(ModelError) as caught:
        await answered(as_agent(agent))
    assert caught.value.code == "truncated"


async def test_all_of_the_cost_is_told(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    model_server.plan(says("Hm.", usage={"input": 11, "output": 7, "cached": 5, "reasoning": 3}))
    events = await answered(as_agent(Agent(model)))
    assert only(events, UsageEvent) == [
        UsageEvent(model="scripted", input_tokens=11, output_tokens=7, cached_input_tokens=5, reasoning_tokens=3)
    ]


async def test_a_model_that_says_nothing_is_a_bad_answer(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    model_server.plan(says(), says())
    with pytest.raises(ModelError) as caught:
        await answered(as_agent(Agent(model)))
    assert caught.value.code == "bad_answer"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelHTTPError(429, "m"), "rate_limited"),
        (ModelHTTPError(401, "m", {"message": "swordfish"}), "model_refused"),
        (ModelHTTPError(400, "m", {"message": "prompt is too long"}), "context_too_long"),
        (ModelConnectionError("m", "swordfish"), "model_unavailable"),
        (ModelAPIError("m", "swordfish"), "model_unavailable"),
        (ModelAPIError("m", "swordfish", provider_error_code="rate_limit", in_stream=True), "rate_limited"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_an_error_of_any_provider_has_its_code(error: ModelAPIError, code: str) -> None:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "Half"
        raise error

    with pytest.raises(ModelError) as caught:
        await answered(as_agent(Agent(FunctionModel(stream_function=stream))))
    assert caught.value.code == code
    assert "swordfish" not in str(caught.value)


async def test_the_history_is_told_in_the_sdks_words(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    history = (
        Message("user", "How is it?"),
        Message("assistant", "Let me look.", tool_calls=(ToolRequest("c1", "look", {"city": "Oslo"}),)),
        Message("tool", "Sunny", call_id="c1"),
        Message("assistant", "It is sunny."),
    )
    assert [part.part_kind for message in sdk_messages(history, LoadedFiles()) for part in message.parts] == [
        "user-prompt",
        "text",
        "tool-call",
        "tool-return",
        "text",
    ]
    model_server.plan(says("Oslo."))
    turn = Turn(id="t2", session_id="s1", principal="ann", message="Where?", history=history)
    assert text(await answered(as_agent(Agent(model)), turn)) == "Oslo."
    assert [message["role"] for message in model_server.bodies[0]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def test_run_in_a_function_is_shown_and_counted(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    agent: Agent[None, str] = Agent(model, name="Scout")

    async def answer(turn: Turn) -> str:
        return (await agent.run(turn.message)).output

    model_server.plan(says("It ", "is."))
    async with open_actor_desk(MemoryStore(), answer) as desk:
        events = await desk.events(await desk.start("Oslo?"))
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [(event.content, event.agent_path) for event in tokens] == [
        ("It ", ("Scout",)),
        ("is.", ("Scout",)),
        ("It is.", ()),
    ]
    assert [event.input_tokens for event in events if isinstance(event, UsageEvent)] == [11]


async def test_run_in_a_thread_is_shown() -> None:
    agent: Agent[None, str] = Agent(TestModel(custom_output_text="Sunny."), name="Scout")

    async def answer(turn: Turn) -> str:
        return await asyncio.to_thread(lambda: asyncio.run(agent.run(turn.message)).output)

    async with open_actor_desk(MemoryStore(), answer) as desk:
        events = await desk.events(await desk.start("Oslo?"))
    texts = [event.content for event in events if isinstance(event, TokenEvent) and event.agent_path == ("Scout",)]
    assert "".join(texts) == "Sunny."


async def test_json_of_a_sub_agent_is_not_shown(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    class Verdict(BaseModel):
        is_homework: bool

    checker = Agent(model, name="Checker", output_type=PromptedOutput(Verdict))
    agent: Agent[None, str] = Agent(model)

    @agent.tool_plain
    async def check() -> bool:
        return (await checker.run("Is it?")).output.is_homework

    model_server.plan(calls(("check", {})), says('{"is_homework": false}'), says("No."))
    async with open_actor_desk(MemoryStore(), agent) as desk:
        events = await desk.events(await desk.start("Is it?"))
    tokens = [(event.content, event.agent_path) for event in events if isinstance(event, TokenEvent)]
    assert tokens == [("No.", ())]
    assert [event.agent_path for event in events if isinstance(event, UsageEvent)] == [(), ("Checker",), ()]
