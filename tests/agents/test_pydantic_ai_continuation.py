"""Turns of unmodified Pydantic AI agents that lose their worker: what is special to the SDK.

`tests/contracts/test_continuation.py` has the rest: every position, parallel tools, sub-agents and approvals.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.contracts.turns import BOUND
from tests.core.desk import (
    Desk,
    Gate,
    completed_answer,
    lose_worker,
    open_actor_desk,
    settle,
    wait_for_events,
    wait_until_suspended,
)
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.agents.pydantic_ai import PydanticAIAgent, pydantic_tools
from turnwire.core.contracts.agents import resumes
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import TokenEvent, ToolResultEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.memory import MemoryStore
from turnwire.tools import tool

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED


@pytest.fixture
async def model(model_server: ScriptedModel) -> AsyncIterator[OpenAIChatModel]:
    client = AsyncOpenAI(base_url=model_server.url, api_key="none", max_retries=0)
    yield OpenAIChatModel("small", provider=OpenAIProvider(openai_client=client))
    await client.close()


async def lose_in_text(store: Store, agent: PydanticAIAgent, text: str) -> TurnRecord:
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent(text))
        await lose_worker(desk)
    return turn


async def finish(store: Store, agent: PydanticAIAgent, turn: TurnRecord) -> str:
    async with open_actor_desk(store, agent) as desk:
        return await completed_answer(desk, turn)


async def lose_at(store: Store, agent: PydanticAIAgent, gate: Gate) -> TurnRecord:
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        await gate.reached()
        await lose_worker(desk)
    return turn


class Weather(BaseModel):
    sky: str


class Report(BaseModel):
    city: str


@pytest.mark.parametrize("ending", ["retry", "failure", "return", "value"])
async def test_tool_ends_as_before_and_the_model_reads_the_same(
    model_server: ScriptedModel, model: OpenAIChatModel, ending: str
) -> None:
    runs: Counter[str] = Counter()
    agent = Agent(model)

    @agent.tool_plain(retries=1)
    async def look(city: str) -> Any:
        runs[city] += 1
        match ending:
            case "retry":
                raise ModelRetry(f"{city} is no city")
            case "failure":
                raise ToolFailed("it is dark")
            case "return":
                return ToolReturn(Weather(sky="grey"), content=["A picture of the sky."], metadata={"by": "me"})
            case _:
                return {"oslo": Weather(sky="grey")}

    model_server.plan(calls(("look", {"city": "Oslo"}), ids=["a1"]), says("It", asyncio.Event()), says("It is."))
    store, adapter = MemoryStore(), PydanticAIAgent(agent)
    turn = await lose_in_text(store, adapter, "It")
    assert await finish(store, adapter, turn) == "It is."
    assert runs == {"Oslo": 1}
    assert model_server.bodies[2]["messages"] == model_server.bodies[1]["messages"]
    results = [logged.event for logged in await store.read(turn.id, 0, 100)]
    assert sum(isinstance(event, ToolResultEvent) for event in results) == 1


async def test_retries_of_a_tool_count_over_a_crash(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    agent = Agent(model)

    @agent.tool_plain(retries=1)
    async def look(city: str) -> str:
        raise ModelRetry("no")

    look_again = calls(("look", {"city": "Rome"}), ids=["a2"])
    model_server.plan(calls(("look", {"city": "Oslo"}), ids=["a1"]), says("Hm", asyncio.Event()), look_again)
    store, adapter = MemoryStore(), PydanticAIAgent(agent)
    turn = await lose_in_text(store, adapter, "Hm")
    async with open_actor_desk(store, adapter) as desk:
        assert (await desk.end(turn)).reason == "tool_failed"  # The second retry is one too many.


async def test_rejected_answer_is_rejected_again_without_a_model_call(
    model_server: ScriptedModel, model: OpenAIChatModel
) -> None:
    agent = Agent(model, output_type=[str, DeferredToolRequests], retries=2)

    @agent.output_validator
    async def check(output: Any) -> Any:
        if output == "Bad.":
            raise ModelRetry("better")
        return output

    model_server.plan(says("Bad."), says("Go", asyncio.Event()), says("Good."))
    store, adapter = MemoryStore(), PydanticAIAgent(agent)
    turn = await lose_in_text(store, adapter, "Go")
    assert await finish(store, adapter, turn) == "Bad.\n\nGood."
    assert len(model_server.bodies) == 3
    assert model_server.bodies[2]["messages"] == model_server.bodies[1]["messages"]


async def test_value_made_by_a_function_is_written_once(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    """An output function is no tool: it runs again."""
    gate, runs = Gate(), 0

    async def report(city: str) -> Report:
        nonlocal runs
        runs += 1
        if runs == 1:
            await gate.wait()
        return Report(city=city)

    agent = Agent(model, output_type=report)
    model_server.plan(calls(("final_result", {"city": "Oslo"}), ids=["a1"]))
    store, adapter = MemoryStore(), PydanticAIAgent(agent)
    async with open_actor_desk(store, adapter) as desk:
        turn = await desk.start("Go")
        await gate.reached()
        await _wait_for_finished(desk, turn, "model")
        await lose_worker(desk)
    assert await finish(store, adapter, turn) == '{"city":"Oslo"}'
    assert (runs, len(model_server.bodies)) == (2, 1)


async def test_tool_that_asked_for_approval_before_the_crash_asks_for_that_and_nothing_else(
    model_server: ScriptedModel, model: OpenAIChatModel
) -> None:
    gate, runs = Gate(), Counter[str]()
    agent = Agent(model)

    @agent.tool
    async def pay(context: RunContext[object], amount: int) -> str:
        if not context.tool_call_approved:
            raise ApprovalRequired(metadata={"reason": "much money"})
        runs["pay"] += 1
        return "paid"

    @agent.tool_plain
    async def wait() -> str:
        runs["wait"] += 1
        if not gate.was_reached:
            await gate.wait()
        return "waited"

    model_server.plan(calls(("pay", {"amount": 9}), ("wait", {}), ids=["a1", "a2"]), says("Done."))
    store, adapter = MemoryStore(), PydanticAIAgent(agent, idempotent=["wait"])
    async with open_actor_desk(store, adapter) as desk:
        turn = await desk.start("Go")
        await gate.reached()
        await _wait_for_finished(desk, turn, "tool")
        await lose_worker(desk)
    async with open_actor_desk(store, adapter) as desk:
        await wait_until_suspended(desk, turn)
        steps = (await fold_log(store, turn.id)).state().steps
        assert [(step.name, step.reason) for step in steps if step.state == "waiting"] == [("pay", "much money")]
        await desk.runner.decide(turn.id, "a1", approved=True)
        assert await completed_answer(desk, turn) == "Done."
    assert runs == {"pay": 1, "wait": 2}


async def _wait_for_finished(desk: Desk, turn: TurnRecord, kind: str) -> None:
    """Wait until the end of a call is recorded. The gate holds what follows."""
    async with asyncio.timeout(BOUND):
        while not any(entry.kind == kind and entry.state == "finished" for entry in await desk.store.journal(turn.id)):
            await settle()


async def test_own_tool_that_is_idempotent_runs_again(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    gate, runs = Gate(), 0

    @tool(idempotent=True)
    async def look(city: str) -> str:
        """Look."""
        nonlocal runs
        runs += 1
        if runs == 1:
            await gate.wait()
        return f"snow in {city}"

    model_server.plan(calls(("look", {"city": "Oslo"}), ids=["a1"]), says("Snow."))
    store, adapter = MemoryStore(), PydanticAIAgent(Agent(model, tools=pydantic_tools([look])))
    turn = await lose_at(store, adapter, gate)
    assert await finish(store, adapter, turn) == "Snow."
    assert (runs, len(model_server.bodies)) == (2, 2)


async def test_sub_agent_in_a_thread_belongs_to_its_tool(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    """Its event loop is another one, so its calls are not recorded; the tool that runs it is."""
    url = model_server.url
    agent = Agent(model)

    @agent.tool_plain
    def ask(question: str) -> str:
        client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        inner = Agent(OpenAIChatModel("small", provider=OpenAIProvider(openai_client=client)), name="Inner")

        async def run() -> str:
            async with client:
                return (await inner.run(question)).output

        return asyncio.run(run())

    model_server.plan(
        calls(("ask", {"question": "sky?"}), ids=["a1"]),
        says("Blue."),
        says("It", asyncio.Event()),
        says("It is blue."),
    )
    store, adapter = MemoryStore(), PydanticAIAgent(agent)
    turn = await lose_in_text(store, adapter, "It")
    assert await finish(store, adapter, turn) == "It is blue."
    assert len(model_server.bodies) == 4
    kinds = [entry.kind for entry in await store.journal(turn.id) if entry.state == "finished"]
    assert sorted(kinds) == ["model", "model", "tool"]


async def test_deps_have_the_changes_of_finished_tools(model_server: ScriptedModel, model: OpenAIChatModel) -> None:
    @dataclass(frozen=True)
    class Basket:
        items: list[str]
        lock: object

    seen: list[list[str]] = []
    agent = Agent(model, deps_type=Basket)

    @agent.tool
    async def put(context: RunContext[Basket], item: str) -> str:
        context.deps.items.append(item)
        raise ModelRetry("full")

    @agent.tool
    async def show(context: RunContext[Basket]) -> str:
        seen.append(context.deps.items)
        return "shown"

    model_server.plan(
        calls(("put", {"item": "tea"}), ids=["a1"]),
        *(says("So", asyncio.Event()), calls(("show", {}), ids=["b1"]), says("Done.")),
    )
    store, adapter = MemoryStore(), PydanticAIAgent(agent, to_deps=lambda turn: Basket([], object()))
    turn = await lose_in_text(store, adapter, "So")
    assert await finish(store, adapter, turn) == "Done."
    assert seen == [["tea"]]


def test_agent_resumes_unless_it_says_otherwise() -> None:
    agent = Agent("test")
    plain, closing = PydanticAIAgent(agent), PydanticAIAgent(agent, on_crash="close")
    assert resumes(plain)
    assert not resumes(closing)
