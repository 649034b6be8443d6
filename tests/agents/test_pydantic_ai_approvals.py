"""How an agent of Pydantic AI waits for a person."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, RunContext
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from tests.contracts.test_agent import check_calls_have_results, only, outcome, text
from tests.contracts.test_agent_approvals import events_until_suspended, results
from tests.core.desk import Desk, open_actor_desk
from turnwire.agents.pydantic_ai import PydanticAIAgent, pydantic_tools
from turnwire.core.log.events import ApprovalRequestEvent, ErrorEvent, Event, ResponseEvent
from turnwire.stores.memory import MemoryStore
from turnwire.tools import tool


def model(output: str | None = None) -> FunctionModel:
    """Calls `send` once, and then says what it was told; by an output tool, if there is one."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        returns = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if not returns:
            yield {0: DeltaToolCall(name="send", json_args='{"to": "bob"}', tool_call_id="c1")}
        elif output:
            yield {0: DeltaToolCall(name=info.output_tools[0].name, json_args=output, tool_call_id="c2")}
        else:
            yield f"I was told: {returns[0].content}"

    return FunctionModel(stream_function=stream)


def desk_for(agent: Any, **options: Any) -> Any:
    return open_actor_desk(MemoryStore(), PydanticAIAgent(agent, **options))


async def decided(desk: Desk, approved: bool, reason: str | None = None) -> list[Event]:
    turn = await desk.start()
    (request,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
    await desk.runner.decide(turn.id, request.call_id, approved=approved, reason=reason)
    return await desk.events(turn)


async def send(to: str) -> str:
    """Sends a letter."""
    return f"sent to {to}"


@pytest.mark.parametrize("approved", [True, False])
async def test_a_tool_may_ask_from_inside_and_say_why(approved: bool) -> None:
    agent: Agent[str, str] = Agent(model(), deps_type=str)

    @agent.tool
    async def send(context: RunContext[str], to: str) -> str:
        if not context.tool_call_approved:
            raise ApprovalRequired(metadata={"reason": "it leaves the house"})
        return f"sent to {to} by {context.deps}"

    async with desk_for(agent, to_deps=lambda turn: turn.principal) as desk:
        events = await decided(desk, approved, "not today")
    assert outcome(events) == ("completed", None)
    (request,) = only(events, ApprovalRequestEvent)
    assert (request.call_id, request.args, request.reason) == ("c1", {"to": "bob"}, "it leaves the house")
    check_calls_have_results(events)
    result = "sent to bob by ann" if approved else "Denied: not today"
    assert results(events) == {"c1": (approved, result)}
    assert text(events) == f"I was told: {result}"


async def test_an_answer_that_is_a_value_comes_after_a_wait_too() -> None:
    class Report(BaseModel):
        sent: bool

    agent = Agent(model('{"sent": true}'), output_type=Report)
    agent.tool_plain(requires_approval=True)(send)
    async with desk_for(WrapperAgent(agent)) as desk:
        events = await decided(desk, True)
    assert outcome(events) == ("completed", None)
    assert text(events) == '{"sent":true}'


async def test_agent_with_output_validators_can_wait() -> None:
    agent: Agent[None, str] = Agent(model())
    agent.tool_plain(requires_approval=True)(send)

    @agent.output_validator
    async def check(output: Any) -> Any:
        return output

    async with desk_for(agent) as desk:
        assert outcome(await decided(desk, True)) == ("completed", None)


async def test_tool_of_a_delegated_agent_can_wait() -> None:
    scout = Agent(model(), name="Scout")
    scout.tool_plain(requires_approval=True)(send)
    chief = Agent(model())

    @chief.tool_plain(name="send")
    async def ask_scout(to: str) -> str:
        return (await scout.run("Send it")).output

    async with desk_for(chief, idempotent=["send"]) as desk:
        events = await decided(desk, True)
    assert outcome(events) == ("completed", None)
    (request,) = only(events, ApprovalRequestEvent)
    assert request.agent_path == ("Scout",)
    (response,) = only(events, ResponseEvent)
    assert response.content == "I was told: I was told: sent to bob"


async def test_a_tool_that_is_run_elsewhere_is_an_error_that_names_it() -> None:
    agent = Agent(model())

    @agent.tool_plain(name="send")
    async def elsewhere(to: str) -> str:
        raise CallDeferred

    async with desk_for(agent) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("failed", "agent_failed")
    assert "external tools (send)" in only(events, ErrorEvent)[0].error


async def test_our_tools_keep_their_limits_and_their_schema() -> None:
    @tool(name="send", timeout=5, max_output=10)
    async def post(to: str) -> dict[str, str]:
        """Sends a letter."""
        return {"sent to": to}

    (made,) = pydantic_tools([post])
    assert made.tool_def.parameters_json_schema == post.parameters
    assert (made.name, made.description) == ("send", "Sends a letter.")
    async with desk_for(Agent(model(), tools=[made])) as desk:
        events = await desk.events(await desk.start())
    assert results(events) == {"c1": (True, '{"sent to"… [cut here: 18 characters in all]')}
