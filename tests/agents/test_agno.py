"""Tests that are special to agno; the contract suite has the rest."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from agno.agent import Agent
from agno.models.openai import OpenAIChat, OpenAIResponses
from agno.run import RunContext
from agno.team import Team
from agno.tools import tool

from tests.contracts.agent_cases.agno import sdk_model
from tests.contracts.test_agent import outcome
from tests.contracts.turns import BOUND
from tests.core.desk import completed_answer, failure, lose_worker, open_actor_desk, wait_for_events
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, fails, model_server, says
from turnwire.agents.agno import AgnoAgent
from turnwire.agents.loader import as_agent
from turnwire.core.log.events import Event, TokenEvent, ToolResultEvent
from turnwire.core.log.model_options import OPTION_NAMES
from turnwire.core.log.turns import Turn
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED


@pytest.fixture
async def model(model_server: ScriptedModel) -> AsyncIterator[OpenAIChat]:
    model = sdk_model(model_server.url, BOUND)
    yield model
    await model.http_client.aclose()  # type: ignore[union-attr]


async def whole_turn(agent: Any) -> list[Event]:
    async with open_actor_desk(MemoryStore(), as_agent(agent)) as desk:
        return await desk.events(await desk.start("Go"))


def tokens(events: list[Event], *path: str) -> list[str]:
    return [event.content for event in events if isinstance(event, TokenEvent) and event.agent_path == path]


async def test_streamed_sub_agent_is_streamed_with_its_path(model: OpenAIChat, model_server: ScriptedModel) -> None:
    scout = Agent(name="Scout", model=model, telemetry=False)

    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        pieces = [event.content async for event in scout.arun(question, stream=True) if event.content]
        return "".join(pieces)

    model_server.plan(calls(("ask_scout", {"question": "Oslo?"})), says("Sunny ", "here."), says("He says sunny."))
    events = await whole_turn(Agent(name="Desk", model=model, tools=[ask_scout]))
    assert tokens(events, "Scout") == ["Sunny ", "here."]
    assert "".join(tokens(events)) == "He says sunny."
    (result,) = [event for event in events if isinstance(event, ToolResultEvent)]
    assert result.result == "Sunny here."


@pytest.mark.parametrize("stream", [False, True])
async def test_blocking_sub_agent_in_a_tool_writes_nothing_as_the_turn_s_own_agent(
    model: OpenAIChat, model_server: ScriptedModel, stream: bool
) -> None:
    scout_model = OpenAIChat(id="small", base_url=model_server.url, api_key="none", max_retries=0)
    scout = Agent(name="Scout", model=scout_model, telemetry=False)

    def ask_scout(question: str) -> str:
        """Ask the scout."""
        if stream:
            return "".join(event.content for event in scout.run(question, stream=True) if event.content)
        return scout.run(question).content or ""

    model_server.keeps_alive = False
    unknown = calls(("look", {"city": "Oslo"}), ids=["l1"])
    model_server.plan(calls(("ask_scout", {"question": "Oslo?"}), ids=["s1"]), unknown, says("Sunny."), says("Sunny!"))
    events = await whole_turn(Agent(name="Desk", model=model, tools=[ask_scout]))
    results = [event for event in events if isinstance(event, ToolResultEvent)]
    assert [(result.call_id, result.result) for result in results] == [("s1", "Sunny.")]
    assert "".join(tokens(events)) == "Sunny!"


async def test_empty_last_reply_does_not_repeat_the_text_before_it(
    model: OpenAIChat, model_server: ScriptedModel
) -> None:
    async def look(city: str) -> str:
        """Look."""
        return "snow"

    model_server.plan(calls(("look", {"city": "Oslo"}), text="One moment."), says(""))
    events = await whole_turn(Agent(name="Desk", model=model, tools=[look]))
    assert "".join(tokens(events)) == "One moment."


async def test_member_of_a_team_has_a_path(model: OpenAIChat, model_server: ScriptedModel) -> None:
    scout = Agent(id="scout", name="Scout", model=model, telemetry=False)
    asks = calls(("delegate_task_to_member", {"member_id": "scout", "task": "Look."}))
    model_server.plan(asks, says("Sunny."), says("The team says sunny."))
    events = await whole_turn(Team(name="Office", model=model, members=[scout]))
    assert "".join(tokens(events, "Scout")) == "Sunny."
    assert "".join(tokens(events)) == "The team says sunny."


async def test_agent_in_a_plain_function_is_shown_with_its_path(model: OpenAIChat, model_server: ScriptedModel) -> None:
    scout = Agent(name="Scout", model=model, telemetry=False)
    model_server.plan(says("Sunny."))

    async def answer(turn: Turn) -> str:
        return f"He says: {(await scout.arun(turn.message)).content}"

    events = await whole_turn(answer)
    assert tokens(events, "Scout") == ["Sunny."]
    assert tokens(events) == ["He says: Sunny."]


async def test_state_of_a_finished_tool_is_there_after_a_crash(model: OpenAIChat, model_server: ScriptedModel) -> None:
    runs: list[str] = []

    async def remember(run_context: RunContext, city: str) -> str:
        """Remember a city."""
        runs.append(city)
        assert run_context.session_state is not None
        run_context.session_state["city"] = city
        del run_context.session_state["cart"]
        return "noted"

    async def recall(run_context: RunContext) -> str:
        """Recall the city."""
        assert run_context.session_state is not None
        assert run_context.dependencies is not None
        assert "cart" not in run_context.session_state
        return f"{run_context.session_state['city']} for {run_context.dependencies['who']}"

    store, never = MemoryStore(), asyncio.Event()
    built = Agent(name="Desk", model=model, tools=[remember, recall])
    agent = AgnoAgent(
        built, to_dependencies=lambda turn: {"who": turn.principal}, session_state={"city": None, "cart": ["tea"]}
    )
    model_server.plan(calls(("remember", {"city": "Oslo"}), ids=["call_a"]), says("Noted", never))
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("Noted"))
        await lose_worker(desk)
    model_server.plan(calls(("recall", {}), ids=["call_b"]), says("Oslo."))
    async with open_actor_desk(store, agent) as desk:
        assert await completed_answer(desk, turn) == "Oslo."
        events = await desk.events(turn)
    assert runs == ["Oslo"]
    results = [event.result for event in events if isinstance(event, ToolResultEvent)]
    assert results == ["noted", "Oslo for ann"]


async def test_state_of_a_turn_is_not_seen_by_another_turn(model: OpenAIChat, model_server: ScriptedModel) -> None:
    async def note(run_context: RunContext, name: str) -> str:
        """Note a name."""
        assert run_context.session_state is not None
        run_context.session_state["last"] = name
        run_context.session_state["names"].append(name)
        return ", ".join(run_context.session_state["names"])

    agent = AgnoAgent(Agent(name="Desk", model=model, tools=[note]), session_state={"names": []})
    for name in ("ann", "bob"):
        model_server.plan(calls(("note", {"name": name})), says("Noted."))
        (result,) = [event for event in await whole_turn(agent) if isinstance(event, ToolResultEvent)]
        assert result.result == name


async def test_state_of_parallel_tools_after_a_crash_is_that_of_the_last_one_that_ended(
    model: OpenAIChat, model_server: ScriptedModel
) -> None:
    second_ended = asyncio.Event()

    async def note(run_context: RunContext, name: str) -> str:
        """Note a name; the first one is noted after the second."""
        if name == "first":
            await second_ended.wait()
        assert run_context.session_state is not None
        run_context.session_state["names"] = [*run_context.session_state["names"], name]
        second_ended.set()
        return "noted"

    async def recall(run_context: RunContext) -> str:
        """Recall the names."""
        assert run_context.session_state is not None
        return " ".join(run_context.session_state["names"])

    store, never = MemoryStore(), asyncio.Event()
    agent = AgnoAgent(Agent(name="Desk", model=model, tools=[note, recall]), session_state={"names": []})
    model_server.plan(calls(("note", {"name": "first"}), ("note", {"name": "second"})), says("Noted", never))
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("Noted"))
        await lose_worker(desk)
    model_server.plan(calls(("recall", {}), ids=["call_c"]), says("Both."))
    async with open_actor_desk(store, agent) as desk:
        assert await completed_answer(desk, turn) == "Both."
        events = await desk.events(turn)
    results = [event.result for event in events if isinstance(event, ToolResultEvent)]
    assert results == ["noted", "noted", "second first"]


async def test_tool_that_needs_user_input_fails_and_says_what_to_use(
    model: OpenAIChat, model_server: ScriptedModel
) -> None:
    @tool(requires_user_input=True, user_input_fields=["to"])
    async def send(to: str) -> str:
        """Send a letter."""
        raise AssertionError("nobody has named the receiver")

    model_server.plan(calls(("send", {})))
    async with open_actor_desk(MemoryStore(), as_agent(Agent(name="Desk", model=model, tools=[send]))) as desk:
        error = await failure(desk, await desk.start("Write"))
    assert "ask()" in error.error


async def test_answer_of_a_fallback_model_completes_the_turn(model: OpenAIChat, model_server: ScriptedModel) -> None:
    model_server.plan(fails(500), says("From the other."))
    other = replace(model, id="other", async_client=None)
    events = await whole_turn(Agent(model=model, fallback_models=[other]))
    assert (outcome(events), "".join(tokens(events))) == (("completed", None), "From the other.")
    assert [body["model"] for body in model_server.bodies] == ["small", "other"]


# Model options


async def test_limit_of_a_client_replaces_the_operator_s_under_its_name(
    model: OpenAIChat, model_server: ScriptedModel
) -> None:
    model_server.plan(says("Short."), says("Long."))
    model.max_completion_tokens = 900
    async with open_actor_desk(MemoryStore(), as_agent(Agent(model=model))) as desk:
        await desk.events(await desk.start("Go", options={"max_tokens": 5}))
        await desk.events(await desk.start("Go"))
    limits = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in model_server.bodies]
    assert limits == [(None, 5), (None, 900)]


def test_options_that_the_model_lacks_or_the_operator_has_fixed_are_not_taken(model: OpenAIChat) -> None:
    def taken(agent: Agent | Team) -> frozenset[str]:
        return AgnoAgent(agent, takes_model_options=True).takes_model_options

    fixed = OpenAIChat("small", request_params={"temperature": 0})
    assert taken(Team(members=[], model=model)) == set(OPTION_NAMES)
    assert taken(Agent(model=fixed)) == set(OPTION_NAMES) - {"temperature"}
    assert taken(Agent(model=OpenAIResponses("small"))) == set(OPTION_NAMES) - {"stop"}
    assert taken(Agent(model=model, output_model=model)) == set(OPTION_NAMES) - {"response_format"}


async def test_turn_fails_at_a_fallback_model_that_lacks_an_option(
    model: OpenAIChat, model_server: ScriptedModel
) -> None:
    other = OpenAIChat("other", base_url=model_server.url, api_key="none", request_params={"temperature": 0})
    model_server.plan(fails(500))
    agent = Agent(model=model, fallback_models=[other])
    async with open_actor_desk(MemoryStore(), as_agent(agent)) as desk:
        events = await desk.events(await desk.start("Go", options={"temperature": 0.5}))
    assert outcome(events) == ("failed", "model_option_not_taken")
    assert [body["model"] for body in model_server.bodies] == ["small"]
