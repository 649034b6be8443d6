"""How an agent of the OpenAI Agents SDK waits for a person, also deep inside other agents."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, RunContextWrapper, Runner, RunState, SQLiteSession, function_tool
from agents.testing import ModelStep, assistant_message, function_call
from agents.testing import ScriptedModel as SdkScript
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
)
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall
from openai.types.responses.tool_param import Mcp

from tests.contracts.stores import SqliteBackend
from tests.contracts.test_agent import check_calls_have_results, only, outcome, text
from tests.contracts.test_agent_approvals import events_until_suspended, results
from tests.core.desk import Desk
from turnwire.agents.openai_agents import OpenAIAgentsAgent, function_tools
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ErrorEvent,
    HandoffEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore
from turnwire.tools import tool

sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@function_tool(needs_approval=True)
async def send(to: str) -> str:
    """Sends a letter."""
    sent.append(to)
    return f"sent to {to}"


@function_tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"


@asynccontextmanager
async def open_desk(agent: Agent[Any], store: Store | None = None, **options: Any) -> AsyncIterator[Desk]:
    store = store or MemoryStore()
    runner = TurnRunner(store, {"agent": OpenAIAgentsAgent(agent, **options)}, Limits())
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        await runner.close()


def letter(to: str, call_id: str) -> Any:
    return function_call("send", {"to": to}, call_id=call_id)


# Agents inside tools


def boss(clerk_says: list[Any], boss_says: list[Any], **options: Any) -> Agent[Any]:
    clerk = Agent(name="Clerk", model=SdkScript(clerk_says), tools=[send, weather])
    ask_clerk = clerk.as_tool("ask_clerk", "Asks the clerk.", **options)
    return Agent(name="Boss", model=SdkScript(boss_says), tools=[ask_clerk, weather])


ASKS_CLERK = [
    function_call("ask_clerk", {"input": "write"}, call_id="b1"),
    function_call("weather", {"city": "Rome"}, call_id="b2"),
]
CLERK_WRITES = [letter("bob", "c1"), function_call("weather", {"city": "Oslo"}, call_id="c2")]


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("streamed", [False, True], ids=["", "read by the application"])
async def test_an_agent_inside_a_tool_may_ask_and_goes_on_after_a_restart(
    approved: bool, streamed: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"on_stream": lambda event: None} if streamed else {}
    backend = SqliteBackend(tmp_path)
    async with open_desk(boss([CLERK_WRITES], [ASKS_CLERK], **options), await backend.open()) as desk:
        turn = await desk.start()
        events = await events_until_suspended(desk, turn)
        (request,) = only(events, ApprovalRequestEvent)
        assert (request.call_id, request.tool, request.args) == ("c1", "send", {"to": "bob"})
        assert request.agent_path == ("Clerk",)
    backend.crash()
    again = boss([[assistant_message("The clerk is done.")]], [[assistant_message("All is done.")]], **options)
    try:
        async with open_desk(again, await backend.open()) as desk:
            await desk.runner.decide(turn.id, "c1", approved=approved, reason="not today")
            events = await desk.events(turn)
    finally:
        await backend.close()
    assert outcome(events) == ("completed", None)
    assert sent == (["bob"] if approved else [])
    check_calls_have_results(events)
    results_by_call = {event.call_id: (event.agent_path, event.success) for event in only(events, ToolResultEvent)}
    assert results_by_call == {
        "b1": ((), True),
        "b2": ((), True),
        "c1": (("Clerk",), approved),
        "c2": (("Clerk",), True),
    }
    assert results(events)["c1"][1] == ("sent to bob" if approved else "Denied: not today")
    assert TokenEvent("The clerk is done.", agent_path=("Clerk",)) in events
    assert "".join(event.content for event in only(events, TokenEvent) if not event.agent_path) == "All is done."


async def test_a_run_that_a_tool_takes_up_again_itself_is_told() -> None:
    clerk = Agent(name="Clerk", model=SdkScript([[letter("bob", "c1")], [assistant_message("Written.")]]), tools=[send])

    @function_tool
    async def ask_clerk() -> str:
        """Asks the clerk, and allows everything."""
        result = await Runner.run(clerk, "write")
        state: RunState[Any, Any] = result.to_state()
        for item in result.interruptions:
            state.approve(item)
        return (await Runner.run(clerk, state)).final_output

    says = [[function_call("ask_clerk", {}, call_id="b1")], [assistant_message("Done.")]]
    async with open_desk(Agent(name="Boss", model=SdkScript(says), tools=[ask_clerk])) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    assert sent == ["bob"]
    assert results(events) == {"b1": (True, "Written."), "c1": (True, "sent to bob")}


# What is kept, and what is made anew


async def test_the_agent_that_took_over_goes_on() -> None:
    def triage(clerk_says: list[Any], triage_says: list[Any]) -> Agent[Any]:
        clerk = Agent(name="Clerk", model=SdkScript(clerk_says), tools=[send])
        return Agent(name="Triage", model=SdkScript(triage_says), handoffs=[clerk])

    store = MemoryStore()
    over = [function_call("transfer_to_clerk", {}, call_id="t1")]
    async with open_desk(triage([[letter("bob", "c1")]], [over]), store) as desk:
        turn = await desk.start()
        (request,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
        assert request.agent_path == ()
    async with open_desk(triage([[assistant_message("Done, says the clerk.")]], []), store) as desk:
        await desk.runner.decide(turn.id, "c1", approved=True)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert only(events, HandoffEvent) == [HandoffEvent("Clerk")]
    assert text(events) == "Done, says the clerk."
    assert sent == ["bob"]


async def test_the_context_is_made_anew_and_never_kept() -> None:
    made: list[str] = []

    class Context:
        """Nothing that could be kept."""

        def __init__(self, principal: str) -> None:
            made.append(principal)
            self.lock = object()

    @function_tool(needs_approval=True)
    async def who(context: RunContextWrapper[Context]) -> str:
        """Return the principal that asks."""
        assert isinstance(context.context.lock, object)
        return made[-1]

    model = SdkScript([[function_call("who", {}, call_id="c1")], [assistant_message("Done.")]])
    agent = Agent(name="Helper", model=model, tools=[who])
    async with open_desk(agent, context=lambda turn: Context(turn.principal)) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        assert "lock" not in repr(await desk.store.journal(turn.id))
        await desk.runner.decide(turn.id, "c1", approved=True)
        events = await desk.events(turn)
    assert results(events) == {"c1": (True, "ann")}
    assert made == ["ann", "ann"]


async def test_the_sdk_s_own_memory_has_each_item_once(tmp_path: Path) -> None:
    model = SdkScript([[letter("bob", "c1")], [assistant_message("Done.")]])
    agent = Agent(name="Helper", model=model, tools=[send])
    memory = SQLiteSession("s1", tmp_path / "memory.db")
    try:
        async with open_desk(agent, session=lambda turn: memory) as desk:
            turn = await desk.start("Write")
            await events_until_suspended(desk, turn)
            await desk.runner.decide(turn.id, "c1", approved=True)
            assert outcome(await desk.events(turn)) == ("completed", None)
        kept = [item.get("type", item.get("role")) for item in await memory.get_items()]
    finally:
        memory.close()
    assert kept == ["user", "function_call", "function_call_output", "message"]


class CompactingSession(SQLiteSession):
    """A session whose provider may replace its items."""

    async def run_compaction(self, args: Any = None) -> None:
        """Leave the items as they are."""


async def test_a_session_at_the_provider_has_each_item_once(tmp_path: Path) -> None:
    model = SdkScript([[letter("bob", "c1")], [assistant_message("Done.")]])
    agent = Agent(name="Helper", model=model, tools=[send])
    memory = CompactingSession("s1", tmp_path / "memory.db")
    try:
        async with open_desk(agent, session=lambda turn: memory) as desk:
            turn = await desk.start("Write")
            await events_until_suspended(desk, turn)
            await desk.runner.decide(turn.id, "c1", approved=True)
            assert outcome(await desk.events(turn)) == ("completed", None)
        kept = [item.get("type", item.get("role")) for item in await memory.get_items()]
    finally:
        memory.close()
    assert kept == ["user", "function_call", "function_call_output", "message"]
    assert sent == ["bob"]


async def test_an_agent_that_is_another_one_cannot_go_on() -> None:
    store = MemoryStore()
    agent = Agent(name="Helper", model=SdkScript([[letter("bob", "c1")]]), tools=[send])
    async with open_desk(agent, store) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
    async with open_desk(Agent(name="Other", model=SdkScript([])), store) as desk:
        await desk.runner.decide(turn.id, "c1", approved=True)
        events = await desk.events(turn)
    assert outcome(events) == ("failed", "diverged")
    (error,) = only(events, ErrorEvent)
    assert "the agent has changed" in error.error
    assert not sent


async def test_two_calls_of_one_id_cannot_be_decided() -> None:
    agent = boss([[letter("bob", "c1")], [letter("eve", "c1")]], [[*ASKS_CLERK[:1], *ASKS_CLERK[:1]]])
    agent.model = SdkScript([[ASKS_CLERK[0], function_call("ask_clerk", {"input": "write to Eve"}, call_id="b3")]])
    async with open_desk(agent) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("failed", "agent_failed")
    assert "same id" in only(events, ErrorEvent)[0].error
    assert not sent


def hosted(*output: Any) -> Any:
    """A step of a model whose provider runs tools itself."""
    events: list[Any] = []
    for index, item in enumerate(output):
        about = {"item": item, "output_index": index, "sequence_number": len(events)}
        events.append(ResponseOutputItemAddedEvent(type="response.output_item.added", **about))
        events.append(ResponseOutputItemDoneEvent(type="response.output_item.done", **about))
    whole = Response(
        id="r", created_at=1, model="m", object="response", output=list(output), parallel_tool_calls=True,
        tool_choice="auto", tools=[], status="completed",
    )  # fmt: skip
    end = ResponseCompletedEvent(type="response.completed", response=whole, sequence_number=len(events))
    return ModelStep.stream([*events, end], output=output)


@pytest.mark.parametrize("approved", [True, False])
async def test_a_tool_at_the_provider_may_need_approval(approved: bool) -> None:
    call: dict[str, Any] = {"arguments": '{"to": "bob"}', "name": "send", "server_label": "post"}
    request = McpApprovalRequest(id="m1", type="mcp_approval_request", **call)
    made = McpCall(id="x", type="mcp_call", output="sent", approval_request_id="m1", status="completed", **call)
    steps = [hosted(request), hosted(*([made] if approved else []), assistant_message("Done."))]
    config: Mcp = {"type": "mcp", "server_label": "post", "server_url": "http://post", "require_approval": "always"}
    agent = Agent(name="Helper", model=SdkScript(steps), tools=[HostedMCPTool(tool_config=config)])
    async with open_desk(agent) as desk:
        turn = await desk.start()
        (pending,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
        assert (pending.call_id, pending.tool, pending.args) == ("m1", "send", {"to": "bob"})
        await desk.runner.decide(turn.id, "m1", approved=approved)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert [event.call_id for event in only(events, ToolCallEvent)] == ["m1"]
    assert results(events)["m1"][0] is approved


# Our tools


async def test_our_tools_keep_their_limits_and_their_schema() -> None:
    @tool(timeout=60, max_output=10)
    async def look(city: str) -> dict[str, str]:
        """Looks."""
        return {"sky": city}

    made: Any = function_tools([look])[0]
    assert (made.name, made.description, made.params_json_schema) == ("look", "Looks.", look.parameters)
    model = SdkScript([[function_call("look", {"city": "Oslo"}, call_id="c1")], [assistant_message("Done.")]])
    async with open_desk(Agent(name="Helper", model=model, tools=[made])) as desk:
        events = await desk.events(await desk.start())
    assert results(events) == {"c1": (True, '{"sky": "O… [cut here: 15 characters in all]')}
