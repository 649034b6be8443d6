"""Tests that are special to LlamaIndex; the contract suite has the rest."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentStream, AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import (
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)
from pydantic import BaseModel

from tests.contracts.turns import BOUND
from tests.core.desk import (
    Desk,
    completed_answer,
    lose_worker,
    open_actor_desk,
    wait_for_events,
    wait_until_suspended,
)
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, conversation_of, model_server, says, thinks
from tests.serving import until
from turnwire.agents.llama_index import LlamaIndexAgent, OpenAICompatibleLLM
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.agents import attachment_types, resumes, takes_client_tools
from turnwire.core.log.events import (
    CustomEvent,
    ErrorEvent,
    HandoffEvent,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.follow import fold_log
from turnwire.core.log.model_options import OPTION_NAMES
from turnwire.core.log.turns import TurnRecord
from turnwire.models.address import ModelAddress
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED


async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"


@pytest.fixture
async def llm(model_server: ScriptedModel) -> AsyncGenerator[OpenAICompatibleLLM]:
    made = OpenAICompatibleLLM("small", base_url=model_server.url, timeout=BOUND, retries=0)
    yield made
    await made.close()


async def events_of(agent: Any, message: str = "Hello") -> list[Any]:
    async with open_actor_desk(MemoryStore(), agent) as desk:
        return list(await desk.events(await desk.start(message)))


def only(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def text(events: list[Any]) -> str:
    return "".join(event.content for event in only(events, TokenEvent) if not event.agent_path)


# Agents


def office(llm: OpenAICompatibleLLM) -> AgentWorkflow:
    desk = FunctionAgent(name="Desk", description="Takes messages.", llm=llm, can_handoff_to=["Boss"])
    boss = FunctionAgent(name="Boss", description="Decides.", llm=llm, tools=[weather], can_handoff_to=[])
    return AgentWorkflow([desk, boss], root_agent="Desk")


HANDOFF = calls(("handoff", {"to_agent": "Boss", "reason": "He knows."}), text="Boss!", ids=["h1"])
LOOK = calls(("weather", {"city": "Oslo"}), ids=["w1"])


async def test_handoff_of_a_workflow_is_reported_and_made_again_after_a_crash(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    store = MemoryStore()
    model_server.plan(HANDOFF, LOOK, says("It", asyncio.Event()))
    async with open_actor_desk(store, office(llm)) as desk:
        turn = await desk.start("Weather?")
        await wait_for_events(desk, turn, TokenEvent("\n\n"), TokenEvent("It"))
        await lose_worker(desk)
    model_server.plan(says("It is sunny."))
    async with open_actor_desk(store, office(llm)) as desk:
        assert await completed_answer(desk, turn) == "Boss!\n\nIt is sunny."
        events = list(await desk.events(turn))
    assert only(events, HandoffEvent) == [HandoffEvent("Boss")]
    assert [event.tool for event in only(events, ToolCallEvent)] == ["weather"]
    assert len(model_server.requests) == 4
    assert [tool["function"]["name"] for tool in model_server.bodies[3]["tools"]] == ["weather"]


# The SDK's own agent uses what the SDK has deprecated.
@pytest.mark.filterwarnings("ignore:is_running called:DeprecationWarning")
async def test_thoughts_of_a_react_agent_are_reasoning_and_its_answer_is_the_text(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    model_server.plan(
        says('Thought: I look.\nAction: weather\nAction Input: {"city": "Oslo"}'),
        says("Thought: I can answer.\nAnswer: ", "It is sunny."),
    )
    events = await events_of(ReActAgent(llm=llm, tools=[weather]))
    assert text(events) == "It is sunny."
    assert "I look" in "".join(event.content for event in only(events, ReasoningEvent))
    assert [event.result for event in only(events, ToolResultEvent)] == ["Sunny in Oslo"]
    assert len(only(events, UsageEvent)) == 2


async def test_result_of_a_tool_that_returns_directly_is_the_answer(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"}), text="I look."))
    tool = FunctionTool.from_defaults(weather, return_direct=True)
    assert text(await events_of(FunctionAgent(llm=llm, tools=[tool]))) == "I look.\n\nSunny in Oslo"


async def test_agent_that_does_not_stream_answers_at_once(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    model_server.plan(LOOK, says("It ", "is sunny."))
    events = await events_of(FunctionAgent(llm=llm, tools=[weather], streaming=False))
    assert [event.content for event in only(events, TokenEvent)] == ["It is sunny."]
    assert len(only(events, UsageEvent)) == 2


async def test_event_that_a_tool_writes_to_the_stream_is_custom(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    class Looked(Event):
        city: str

    async def look(ctx: Context, city: str) -> str:
        """Look out of the window."""
        ctx.write_event_to_stream(Looked(city=city))
        return "sunny"

    model_server.plan(calls(("look", {"city": "Oslo"})), says("Sunny."))
    events = await events_of(FunctionAgent(llm=llm, tools=[look]))
    assert only(events, CustomEvent) == [CustomEvent("Looked", {"city": "Oslo"})]


async def test_state_that_a_tool_has_changed_is_there_after_a_crash(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    async def remember(ctx: Context, name: str) -> str:
        """Remember a name."""
        state = await ctx.store.get("state")
        await ctx.store.set("state", {**state, "name": name})
        await ctx.store.set("times", 1)
        return "noted"

    async def recall(ctx: Context) -> str:
        """Say the name."""
        return f"{(await ctx.store.get('state'))['name']} {await ctx.store.get('times')}"

    def build() -> FunctionAgent:
        return FunctionAgent(llm=llm, tools=[remember, recall], initial_state={"name": "nobody"})

    store = MemoryStore()
    model_server.plan(calls(("remember", {"name": "Ann"}), ids=["r1"]), says("Well", asyncio.Event()))
    async with open_actor_desk(store, build()) as desk:
        turn = await desk.start("I am Ann.")
        await wait_for_events(desk, turn, TokenEvent("Well"))
        await lose_worker(desk)
    model_server.plan(calls(("recall", {}), ids=["r2"]), says("Ann."))
    async with open_actor_desk(store, build()) as desk:
        await completed_answer(desk, turn)
    assert ("result", ("r2", "Ann 1")) in conversation_of(model_server.bodies[-1])


async def test_wait_of_a_tool_for_a_person_is_a_question(model_server: ScriptedModel, llm: OpenAICompatibleLLM) -> None:
    async def delete(ctx: Context, name: str) -> str:
        """Delete a file."""
        question = InputRequiredEvent(prefix=f"Delete {name}?", user="ann")  # type: ignore[call-arg]
        reply = await ctx.wait_for_event(HumanResponseEvent, waiter_event=question, requirements={"user": "ann"})
        return f"{reply.user}: {reply.response}"

    model_server.plan(calls(("delete", {"name": "a.txt"}), ids=["d1"]), says("Done."))
    async with open_actor_desk(MemoryStore(), FunctionAgent(llm=llm, tools=[delete])) as desk:
        turn = await desk.start("Delete it.")
        await reply_to(desk, turn, "Delete a.txt?", "yes")
        assert await completed_answer(desk, turn) == "Done."
    assert conversation_of(model_server.bodies[1])[-1] == ("result", ("d1", "ann: yes"))


async def reply_to(desk: Desk, turn: TurnRecord, prompt: str, value: str) -> None:
    await wait_until_suspended(desk, turn)
    (question,) = (await fold_log(desk.store, turn.id)).requests.open_questions
    assert question.prompt == prompt
    await desk.runner.reply(turn.id, question.id, value)


async def test_stopped_turn_ends_the_run_of_an_agent_inside_a_tool(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    async def consult(question: str) -> str:
        """Ask the expert."""
        return str(await FunctionAgent(name="Expert", llm=llm).run(question))

    model_server.plan(calls(("consult", {"question": "Why?"}), ids=["c1"]), says("Because", asyncio.Event()))
    async with open_actor_desk(MemoryStore(), FunctionAgent(name="Desk", llm=llm, tools=[consult])) as desk:
        turn = await desk.start("Why?")
        await until(lambda: len(model_server.requests) == 2)
        await desk.cancel(turn)
        await until(lambda: not any("run_workflow" in str(task.get_coro()) for task in asyncio.all_tasks()))


async def test_blocking_calls_of_the_model_work_each_time(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    model_server.otherwise = lambda _: says("Hello", " you.")
    message = ChatMessage(role="user", content="Hi")
    assert (await llm.achat([message])).message.content == "Hello you."
    for _ in range(2):
        assert (await asyncio.to_thread(llm.chat, [message])).message.content == "Hello you."
        assert (await asyncio.to_thread(llm.complete, "Hi")).text == "Hello you."
    assert (await llm.achat([message])).message.content == "Hello you."


async def test_run_outside_a_turn_is_left_alone(model_server: ScriptedModel, llm: OpenAICompatibleLLM) -> None:
    as_agent(agent := FunctionAgent(llm=llm, tools=[weather]))
    model_server.plan(LOOK, says("Sunny."))
    handler = agent.run("Weather?")
    kinds = {type(event).__name__ async for event in handler.stream_events()}
    assert str(await handler) == "Sunny."
    assert {"AgentStream", "ToolCall", "ToolCallResult"} <= kinds
    assert agent.llm is llm


async def test_agents_of_a_workflow_get_another_model(model_server: ScriptedModel, llm: OpenAICompatibleLLM) -> None:
    workflow = office(llm)
    agent = LlamaIndexAgent(workflow).with_model(ModelAddress("other", model_server.url, "none"))
    model_server.plan(HANDOFF, says("Hello."))
    await events_of(agent)
    assert [body["model"] for body in model_server.bodies] == ["other", "other"]
    assert all(each.llm is llm for each in workflow.agents.values())
    for each in agent._agent.agents.values():  # type: ignore[attr-defined]
        await each.llm.close()


# Other LLMs


class ChunkedLLM(OpenAICompatibleLLM):
    """An LLM whose pieces have the raw chunks of OpenAI's API, as those of LlamaIndex's own packages have."""

    async def _stream(self, messages: Sequence[ChatMessage], tools: Any) -> AsyncGenerator[ChatResponse]:
        reason = "stop" if "whole" in str(messages[-1].content) else None
        for delta, choice in (("Sun", None), ("ny.", reason)):
            raw = {"choices": [{"finish_reason": choice}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
            yield ChatResponse(message=ChatMessage(role="assistant", content="Sunny."), delta=delta, raw=raw)


@pytest.mark.parametrize(("message", "code"), [("a whole answer", None), ("half of one", "truncated")])
async def test_finish_reason_and_usage_of_another_llm_are_read_from_its_chunks(message: str, code: str | None) -> None:
    llm = ChunkedLLM("small", base_url="http://127.0.0.1:9/v1")  # type: ignore[call-arg]
    events = await events_of(FunctionAgent(llm=llm), message)
    assert text(events) == "Sunny."
    assert [event.code for event in only(events, ErrorEvent)] == ([code] if code else [])
    assert [(event.input_tokens, event.output_tokens) for event in only(events, UsageEvent)] == [(3, 4)]
    await llm.close()


class Forecast(BaseModel):
    degrees: int


class WarmLLM(MockFunctionCallingLLM):
    """An LLM with one setting."""

    temperature: float = 0.5

    async def astream_chat_with_tools(self, tools: Any, **options: Any) -> AsyncGenerator[ChatResponse]:
        async def reply() -> AsyncGenerator[ChatResponse]:
            content = f"At {self.temperature}."
            yield ChatResponse(message=ChatMessage(role="assistant", content=content), delta=content)

        return reply()


async def test_another_llm_gets_the_model_options_that_are_its_fields() -> None:
    llm = WarmLLM()
    agent = LlamaIndexAgent(FunctionAgent(llm=llm), takes_model_options=True)
    assert agent.takes_model_options == {"instructions", "temperature"}
    async with open_actor_desk(MemoryStore(), agent) as desk:
        warm = await desk.events(await desk.start("Hello", options={"temperature": 0.9}))
        usual = await desk.events(await desk.start("Hello"))
    assert (text(list(warm)), text(list(usual)), llm.temperature) == ("At 0.9.", "At 0.5.", 0.5)


def test_agents_of_text_and_workflows_take_fewer_model_options(llm: OpenAICompatibleLLM) -> None:
    def taken(agent: Workflow) -> frozenset[str]:
        return LlamaIndexAgent(agent, takes_model_options=True).takes_model_options

    sampling = {"instructions", "temperature", "top_p", "max_tokens"}
    pair: Any = [kind(name=kind.__name__, description="One.", llm=llm) for kind in (FunctionAgent, ReActAgent)]
    assert taken(ReActAgent(llm=llm)) == taken(AgentWorkflow(agents=pair, root_agent="FunctionAgent")) == sampling
    assert taken(FunctionAgent(llm=llm, output_cls=Forecast)) == set(OPTION_NAMES) - {"response_format"}
    assert taken(Steps(FunctionAgent(llm=llm))) == set()


async def test_llm_thinks_completes_and_needs_no_event_loop(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    model_server.plan(says(thinks("Hm."), "Tea."), says("Tea."), says("Te", "a."))
    pieces = [piece async for piece in await llm.astream_chat([ChatMessage(role="user", content="Drink?")])]
    assert pieces[0].additional_kwargs == {"thinking_delta": "Hm."}
    assert (await llm.acomplete("Drink?")).text == "Tea."
    assert [piece.delta async for piece in await llm.astream_complete("Drink?")] == ["Te", "a.", ""]


# Workflows


class Steps(Workflow):
    """A workflow that streams its text, reports a step, and runs an agent."""

    def __init__(self, agent: FunctionAgent) -> None:
        super().__init__(timeout=BOUND)
        self.agent = agent

    @step
    async def first(self, ctx: Context, ev: StartEvent) -> StopEvent:
        for delta in ("You said: ", ev.user_msg, f" ({len(ev.chat_history)})"):
            ctx.write_event_to_stream(AgentStream(delta=delta, response="", current_agent_name="Steps"))
        return StopEvent(result=str(await self.agent.run(ev.user_msg)))


class Asking(Workflow):
    """A workflow with a step that waits for a person."""

    @step
    async def first(self, ev: StartEvent) -> InputRequiredEvent:
        return InputRequiredEvent(prefix="Sure?")  # type: ignore[call-arg]

    @step
    async def second(self, ev: HumanResponseEvent) -> StopEvent:
        return StopEvent(result="done")


class Silent(Workflow):
    """A workflow that only returns something."""

    @step
    async def first(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=f"{ev.topic}!")


async def test_workflow_streams_its_text_and_the_work_of_its_agents(
    model_server: ScriptedModel, llm: OpenAICompatibleLLM
) -> None:
    model_server.plan(LOOK, says("Sunny."))
    events = await events_of(Steps(FunctionAgent(name="Scout", llm=llm, tools=[weather])))
    assert text(events) == "You said: Hello (0)\n\nSunny."
    inside = [event for event in events if event.agent_path]
    assert {event.agent_path for event in inside} == {("Scout",)}
    assert [event.tool for event in only(inside, ToolCallEvent)] == ["weather"]
    assert len(only(inside, UsageEvent)) == 2


async def test_workflow_gets_its_start_from_the_turn_and_answers_with_its_result() -> None:
    agent = LlamaIndexAgent(Silent(timeout=BOUND), to_start=lambda turn: {"topic": turn.message})
    assert text(await events_of(agent, "Tea")) == "Tea!"


async def test_workflow_that_waits_for_a_person_in_a_step_fails_with_an_explanation() -> None:
    (error,) = only(await events_of(Asking(timeout=BOUND)), ErrorEvent)
    assert "ask in a tool" in error.error


def test_workflow_takes_no_files_and_no_client_tools_and_does_not_continue() -> None:
    agent = as_agent(Silent(timeout=BOUND))
    assert not any((resumes(agent), takes_client_tools(agent), attachment_types(agent)))
    for options in ({"on_crash": "resume"}, {"needs_approval": ["send"]}):
        with pytest.raises(ValueError, match=r"cannot be recorded|are not known"):
            LlamaIndexAgent(Silent(timeout=BOUND), **options)  # type: ignore[arg-type]
