"""Tests that are special to Google's ADK; the contract suite has the rest."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps import App
from google.adk.events.event import Event as SdkEvent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types

from tests.contracts.agent_cases.google_adk import run_agent, sdk_model
from tests.contracts.turns import BOUND
from tests.core.desk import (
    completed_answer,
    lose_worker,
    open_actor_desk,
    wait_for_events,
    wait_for_request,
    wait_until_suspended,
)
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Answer, Request, ScriptedModel, calls, conversation_of, model_server, says
from turnwire.agents.agent_paths import enter_agent, leave_agent
from turnwire.agents.google_adk import GoogleADKAgent
from turnwire.agents.loader import as_agent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    Event,
    HandoffEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.model_options import OPTION_NAMES
from turnwire.core.log.turns import Turn
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED
# The SDK still has what it warns of, and uses it itself.
SDK_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
async def model(model_server: ScriptedModel) -> AsyncIterator[Gemini]:
    model = sdk_model(model_server.url, BOUND)
    yield model
    assert model.client is not None
    await model.client.aio.aclose()


def llm_agent(model: Gemini, name: str = "Desk", **options: Any) -> LlmAgent:
    return LlmAgent(name=name, model=model, instruction=f"You are {name}.", **options)


async def whole_turn(agent: Any, message: str = "Go") -> list[Event]:
    async with open_actor_desk(MemoryStore(), as_agent(agent)) as desk:
        return await desk.events(await desk.start(message))


def only(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def text_of(events: list[Event], *path: str) -> str:
    return "".join(event.content for event in only(events, TokenEvent) if event.agent_path == path)


def instruction_of(request: Request) -> str:
    return "".join(part["text"] for part in request.body["systemInstruction"]["parts"])


# Several agents


async def test_transfer_is_a_handoff_and_the_next_turn_begins_with_that_agent(
    model: Gemini, model_server: ScriptedModel
) -> None:
    boss = llm_agent(model, "Boss", description="Decides.")
    model_server.plan(
        calls(("transfer_to_agent", {"agent_name": "Boss"}), text="One moment."), says("Yes."), says("Still yes.")
    )
    async with open_actor_desk(MemoryStore(), as_agent(llm_agent(model, sub_agents=[boss]))) as desk:
        turn = await desk.start("May I?")
        events = await desk.events(turn)
        await desk.events(await desk.start("Really?", session_id=turn.session_id))
    assert only(events, HandoffEvent) == [HandoffEvent("Boss")]
    assert not only(events, ToolCallEvent)
    assert text_of(events) == "One moment.\n\nYes."
    names = ["Boss" if "You are Boss" in instruction_of(request) else "Desk" for request in model_server.requests]
    assert names == ["Desk", "Boss", "Boss"]


@SDK_WARNS
async def test_agent_tool_has_a_path_and_streams(model: Gemini, model_server: ScriptedModel) -> None:
    scout = llm_agent(model, "Scout", description="Looks.")
    model_server.plan(
        calls(("Scout", {"request": "Look."}), ids=["s1"]), says("Sunny ", "here."), says("He says sunny.")
    )
    events = await whole_turn(llm_agent(model, tools=[AgentTool(scout)]))
    inside = [event.content for event in only(events, TokenEvent) if event.agent_path == ("Scout",)]
    assert inside == ["Sunny ", "here."]
    assert text_of(events) == "He says sunny."
    (result,) = only(events, ToolResultEvent)
    assert (result.call_id, result.success, result.result) == ("s1", True, "Sunny here.")


async def test_single_turn_sub_agent_is_a_tool_with_a_path(model: Gemini, model_server: ScriptedModel) -> None:
    scout = llm_agent(model, "Scout", description="Looks.", mode="single_turn")
    model_server.plan(calls(("Scout", {"request": "Look."}), ids=["s1"]), says("Sunny."), says("He says sunny."))
    events = await whole_turn(llm_agent(model, sub_agents=[scout]))
    assert text_of(events) == "He says sunny."
    assert text_of(events, "Scout") == "Sunny."


@SDK_WARNS
async def test_parallel_agents_have_paths_and_the_last_of_a_sequence_answers(
    model: Gemini, model_server: ScriptedModel
) -> None:
    def answer(request: Request) -> Answer:
        name = next(name for name in ("Ann", "Bob", "Editor") if f"You are {name}." in instruction_of(request))
        return says(f"{name} writes.")

    both = ParallelAgent(name="Both", sub_agents=[llm_agent(model, "Ann"), llm_agent(model, "Bob")])
    model_server.plan(answer, answer, answer)
    events = await whole_turn(SequentialAgent(name="Paper", sub_agents=[both, llm_agent(model, "Editor")]))
    assert text_of(events, "Ann") == "Ann writes."
    assert text_of(events, "Bob") == "Bob writes."
    assert text_of(events) == "Editor writes."


@SDK_WARNS
async def test_paths_of_parallel_agents_are_released_at_the_end_of_the_turn(
    model: Gemini, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_paths: list[tuple[str, ...]] = []

    def enter(*args: Any, **options: Any) -> tuple[str, ...]:
        open_paths.append(enter_agent(*args, **options))
        return open_paths[-1]

    def leave(path: tuple[str, ...]) -> None:
        open_paths.remove(path)
        leave_agent(path)

    monkeypatch.setattr("turnwire.agents.google_adk.events.enter_agent", enter)
    monkeypatch.setattr("turnwire.agents.run_recorder.leave_agent", leave)
    both = ParallelAgent(name="Both", sub_agents=[llm_agent(model, "Ann"), llm_agent(model, "Bob")])
    model_server.plan(says("Yes."), says("Yes."))
    events = await whole_turn(both)
    assert text_of(events, "Ann") == text_of(events, "Bob") == "Yes."
    assert open_paths == []


async def test_workflow_is_an_agent(model: Gemini, model_server: ScriptedModel) -> None:
    draft, final = llm_agent(model, "Draft"), llm_agent(model, "Final")
    model_server.plan(says("A draft."), says("The text."))
    events = await whole_turn(Workflow(name="paper", edges=[("START", draft), (draft, final)]))
    assert text_of(events) == "A draft.\n\nThe text."


async def test_text_of_an_agent_without_a_model_is_the_answer() -> None:
    class Clock(BaseAgent):
        async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[SdkEvent]:
            content = types.Content(role="model", parts=[types.Part(text="It is noon.")])
            yield SdkEvent(author=self.name, invocation_id=ctx.invocation_id, content=content)

    events = await whole_turn(Clock(name="Clock"))
    assert text_of(events) == "It is noon."


async def test_agent_in_a_plain_function_is_shown_with_its_path(model: Gemini, model_server: ScriptedModel) -> None:
    scout = llm_agent(model, "Scout")
    model_server.plan(says("Sunny."))

    async def answer(turn: Turn) -> str:
        return f"He says: {await run_agent(scout, turn.message)}"

    events = await whole_turn(answer)
    assert text_of(events, "Scout") == "Sunny."
    assert text_of(events) == "He says: Sunny."


# The application's callbacks, plugins and state


async def test_reply_of_a_callback_is_the_answer_and_calls_no_model(model: Gemini, model_server: ScriptedModel) -> None:
    def refuse(callback_context: Any, llm_request: Any) -> LlmResponse:
        return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Not today.")]))

    events = await whole_turn(llm_agent(model, before_model_callback=refuse))
    assert text_of(events) == "Not today."
    assert not model_server.requests


async def test_app_keeps_its_plugins(model: Gemini, model_server: ScriptedModel) -> None:
    class Loud(BasePlugin):
        async def after_tool_callback(self, **call: Any) -> dict[str, Any]:
            return {"result": call["result"].upper()}

    async def look(city: str) -> str:
        """Look."""
        return f"snow in {city}"

    model_server.plan(calls(("look", {"city": "Oslo"})), says("Cold."))
    app = App(name="weather", root_agent=llm_agent(model, tools=[look]), plugins=[Loud(name="loud")])
    assert text_of(await whole_turn(app)) == "Cold."
    assert ("result", ("call_1", "SNOW IN OSLO")) in conversation_of(model_server.bodies[1])


async def test_state_of_a_finished_tool_is_there_after_a_crash(model: Gemini, model_server: ScriptedModel) -> None:
    runs: list[str] = []

    async def remember(city: str, tool_context: ToolContext) -> str:
        """Remember a city."""
        runs.append(city)
        tool_context.state["city"] = city
        return "noted"

    async def recall(tool_context: ToolContext) -> str:
        """Recall the city."""
        return f"{tool_context.state['city']} for {tool_context.state['who']}"

    store, never = MemoryStore(), asyncio.Event()
    built = llm_agent(model, tools=[remember, recall])
    agent = GoogleADKAgent(built, state=lambda turn: {"who": turn.principal})
    # Gemini's own service sends calls without ids, so the SDK makes them: they must be the same again.
    model_server.plan(calls(("remember", {"city": "Oslo"}), ids=None), says("Noted", never))
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("Noted"))
        await lose_worker(desk)
    model_server.plan(calls(("recall", {}), ids=None), says("Oslo."))
    async with open_actor_desk(store, agent) as desk:
        assert await completed_answer(desk, turn) == "Oslo."
        events = await desk.events(turn)
    assert runs == ["Oslo"]
    assert [result.result for result in only(events, ToolResultEvent)] == ["noted", "Oslo for ann"]


# Approvals


@pytest.mark.parametrize("approved", [True, False])
async def test_tool_that_asks_for_confirmation_itself_gives_the_reason(
    model: Gemini, model_server: ScriptedModel, approved: bool
) -> None:
    sent: list[str] = []

    async def send(to: str, tool_context: ToolContext) -> str:
        """Send a letter."""
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint=f"{to} is a stranger")
            return "waiting"
        sent.append(to)
        return f"sent to {to}"

    model_server.plan(calls(("send", {"to": "bob"})), says("Done."))
    async with open_actor_desk(MemoryStore(), as_agent(llm_agent(model, tools=[send]))) as desk:
        turn = await desk.start("Write")
        await wait_for_request(desk, turn, "call_1")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=approved, reason="no strangers")
        assert await completed_answer(desk, turn) == "Done."
        events = await desk.events(turn)
    assert [request.reason for request in only(events, ApprovalRequestEvent)] == ["bob is a stranger"]
    (result,) = only(events, ToolResultEvent)
    assert result.success is approved
    assert result.result == "sent to bob" if approved else "no strangers" in result.result
    assert sent == (["bob"] if approved else [])


@SDK_WARNS
async def test_approval_in_an_agent_tool_suspends_the_turn(model: Gemini, model_server: ScriptedModel) -> None:
    sent: list[str] = []

    async def send(to: str) -> str:
        """Send a letter."""
        sent.append(to)
        return "sent"

    clerk = llm_agent(model, "Clerk", description="Writes.", tools=[FunctionTool(send, require_confirmation=True)])
    model_server.plan(calls(("Clerk", {"request": "Write to Bob."})), calls(("send", {"to": "bob"}), ids=["w1"]))
    model_server.plan(says("I have written."), says("He has written."))
    agent = as_agent(llm_agent(model, tools=[AgentTool(clerk)]))
    async with open_actor_desk(MemoryStore(), agent) as desk:
        turn = await desk.start("Write")
        await wait_for_request(desk, turn, "w1")
        await wait_until_suspended(desk, turn)
        assert not sent
        await desk.runner.decide(turn.id, "w1", approved=True)
        assert await completed_answer(desk, turn) == "He has written."
    assert sent == ["bob"]


def test_missing_key_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    agent = GoogleADKAgent(LlmAgent(name="helper", model="gemini-3-flash"))
    assert agent.find_problems() == ["the agent 'helper' calls Gemini, and there is no key; set GOOGLE_API_KEY"]
    monkeypatch.setenv("GOOGLE_API_KEY", "secret")
    assert agent.find_problems() == []


# Model options


class OtherLlm(BaseLlm):
    """A model of another provider."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        yield LlmResponse()


@SDK_WARNS
def test_model_options_are_for_agents_whose_models_are_gemini(model: Gemini) -> None:
    def taken(agent: BaseAgent) -> frozenset[str]:
        return GoogleADKAgent(agent, takes_model_options=True).takes_model_options

    helper = LlmAgent(name="Helper", model=OtherLlm(model="other"))
    assert taken(LlmAgent(name="Desk", model=model)) == set(OPTION_NAMES)
    assert taken(LlmAgent(name="Desk", model=model, sub_agents=[helper])) == {"instructions"}
    assert taken(LlmAgent(name="Desk", model="unknown-model")) == {"instructions"}
    assert taken(SequentialAgent(name="Steps", sub_agents=[LlmAgent(name="One", model=model)])) == set()
