"""Turnwire's own tool loop, broken off and gone on with elsewhere: what its model is told, and what runs again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tests.contracts.turns import BOUND
from tests.core.desk import (
    Desk,
    Gate,
    completed_answer,
    lose_worker,
    open_actor_desk,
    start_drain,
    wait_for_events,
    wait_until_suspended,
)
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.core.contracts.agents import OnCrash
from turnwire.core.log.events import ApprovalRequestEvent, RestartEvent, TokenEvent, ToolCallEvent, ToolResultEvent
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import TurnRecord
from turnwire.core.run.recovery import OUTCOME_UNKNOWN
from turnwire.stores.memory import MemoryStore
from turnwire.tools import tool

__all__ = ["model_server"]


class Bench:
    """Two tools, which remember what they did. `gate` holds those that are told to be slow."""

    def __init__(self, *slow: str) -> None:
        self.done: list[str] = []
        self.gate = Gate()
        self.slow = set(slow)

        @tool(idempotent=True)
        async def look(city: str) -> dict[str, str]:
            return {"weather": await self.do(f"look {city}")}

        @tool
        async def pay(amount: int) -> str:
            return await self.do(f"pay {amount}")

        @tool(idempotent=True, needs_approval=True)
        async def send(to: str) -> str:
            return await self.do(f"send {to}")

        self.tools = [look, pay, send]

    async def do(self, what: str) -> str:
        self.done.append(what)
        if what in self.slow:
            self.slow.remove(what)
            await self.gate.wait()
        return f"did {what}"


@asynccontextmanager
async def another(
    store: MemoryStore, server: ScriptedModel, bench: Bench, on_crash: OnCrash = "resume", max_steps: int = 20
) -> AsyncIterator[Desk]:
    """A process with an agent of its own."""
    agent = ChatCompletionsAgent(
        "small",
        base_url=server.url,
        tools=bench.tools,
        retries=0,
        on_crash=on_crash,
        max_steps=max_steps,
    )
    try:
        async with open_actor_desk(store, agent) as desk:
            yield desk
    finally:
        async with asyncio.timeout(BOUND):
            await agent.close()


async def broken_off(store: MemoryStore, server: ScriptedModel, bench: Bench, **options: Any) -> TurnRecord:
    """A turn that was lost while a tool ran."""
    async with another(store, server, bench, **options) as desk:
        turn = await desk.start("Go")
        await bench.gate.reached()
        await wait_for_results(desk, turn, len(bench.done) - 1)
        async with asyncio.timeout(BOUND):
            await desk.runner.worker.running[turn.id]._log.flush()
        await lose_worker(desk)
    return turn


async def wait_for_results(desk: Desk, turn: TurnRecord, count: int) -> None:
    """Wait until the log has the results of this many calls."""
    if not count:
        return
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id)) as batches:
        async for events in batches:
            count -= sum(isinstance(logged.event, ToolResultEvent) for logged in events)
            if count <= 0:
                return


def conversation(server: ScriptedModel) -> list[tuple[str, Any]]:
    """Return the last request to the model: its own words or calls, and the results of tools."""
    return [
        (message["role"], message.get("content") or [call["id"] for call in message["tool_calls"]])
        for message in server.bodies[-1]["messages"]
    ]


async def test_finished_steps_are_not_repeated_and_the_model_is_told_of_them(model_server: ScriptedModel) -> None:
    bench, store, never = Bench(), MemoryStore(), asyncio.Event()
    model_server.plan(
        calls(("look", {"city": "Oslo"}), text="Let me look."),
        calls(("look", {"city": "Rome"}), ("pay", {"amount": 1}), text="And there.", ids=["b1", "b2"]),
        says("It is sn", never),
        says("Snow."),
    )
    async with another(store, model_server, bench) as desk:
        turn = await desk.start("How is it?")
        await wait_for_events(desk, turn, TokenEvent("\n\n"), TokenEvent("It is sn"))
        await lose_worker(desk)
    async with another(store, model_server, bench) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Let me look.\n\nAnd there.\n\nSnow."
    assert bench.done == ["look Oslo", "look Rome", "pay 1"]
    assert sum(isinstance(event, ToolCallEvent) for event in events) == 3
    assert model_server.bodies[3]["tools"] == model_server.bodies[2]["tools"]
    broken, resumed = (
        [{**message, "content": (message.get("content") or "").replace(": ", ":")} for message in body["messages"]]
        for body in model_server.bodies[2:]
    )
    assert resumed == broken


async def test_of_calls_that_broke_off_one_that_is_idempotent_runs_again(model_server: ScriptedModel) -> None:
    bench, store = Bench("look Rome"), MemoryStore()
    model_server.plan(calls(("pay", {"amount": 1}), ("look", {"city": "Rome"})), says("Done."))
    turn = await broken_off(store, model_server, bench)
    async with another(store, model_server, bench) as desk:
        assert await completed_answer(desk, turn) == "Done."
    assert bench.done == ["pay 1", "look Rome", "look Rome"]
    assert conversation(model_server)[1:3] == [("assistant", ["call_1", "call_2"]), ("tool", "did pay 1")]


@pytest.mark.parametrize("approved", [True, False])
async def test_of_calls_that_broke_off_any_other_waits_for_a_person(
    model_server: ScriptedModel, approved: bool
) -> None:
    bench, store = Bench("pay 1"), MemoryStore()
    model_server.plan(calls(("look", {"city": "Rome"}), ("pay", {"amount": 1})), says("Done."))
    turn = await broken_off(store, model_server, bench)
    async with another(store, model_server, bench) as desk:
        await wait_until_suspended(desk, turn)
        assert bench.done == ["look Rome", "pay 1"]
        await desk.runner.decide(turn.id, "call_2", approved=approved)
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Done."
    assert ApprovalRequestEvent("call_2", "pay", {"amount": 1}, OUTCOME_UNKNOWN) in events
    assert bench.done == ["look Rome", "pay 1"] + ["pay 1"] * approved
    _, result = conversation(model_server)[-1]
    assert result == "did pay 1" if approved else result.startswith("Outcome unknown")


async def test_an_idempotent_call_that_nobody_had_approved_still_waits_for_it(model_server: ScriptedModel) -> None:
    bench, store = Bench("pay 1"), MemoryStore()
    model_server.plan(calls(("pay", {"amount": 1}), ("send", {"to": "bob"})), says("Done."))
    turn = await broken_off(store, model_server, bench)
    async with another(store, model_server, bench) as desk:
        for call_id in ("call_1", "call_2"):
            await wait_until_suspended(desk, turn)
            assert bench.done[-1] == "pay 1"
            await desk.runner.decide(turn.id, call_id, approved=True)
        assert await completed_answer(desk, turn) == "Done."
    assert bench.done == ["pay 1", "pay 1", "send bob"]
    assert [role for role, _ in conversation(model_server)] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("on_crash", ["close", "resume"])
async def test_after_an_approval_the_model_is_told_the_same(model_server: ScriptedModel, on_crash: OnCrash) -> None:
    bench, store = Bench(), MemoryStore()
    model_server.plan(calls(("send", {"to": "bob"}), ("pay", {"amount": 1}), text="Both."), says("Then more."))
    async with another(store, model_server, bench, on_crash) as desk:
        turn = await desk.start("Go")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=True)
        assert await completed_answer(desk, turn) == "Both.\n\nThen more."
    assert bench.done == ["pay 1", "send bob"]
    assert sorted(conversation(model_server)[2:]) == [("tool", "did pay 1"), ("tool", "did send bob")]
    assert model_server.bodies[1]["messages"][1]["content"] == "Both."


async def test_the_model_is_asked_no_more_often_because_it_was_broken_off(model_server: ScriptedModel) -> None:
    bench, store = Bench("look Rome"), MemoryStore()
    model_server.plan(
        *(calls(("look", {"city": city}), ids=[city]) for city in ("Oslo", "Rome", "Lima")),
    )
    turn = await broken_off(store, model_server, bench, max_steps=3)
    async with another(store, model_server, bench, max_steps=3) as desk:
        assert (await desk.end(turn)).reason == "max_turns"
    assert bench.done == ["look Oslo", "look Rome", "look Rome"]


async def test_a_worker_that_is_stopped_leaves_the_next_question_to_another(model_server: ScriptedModel) -> None:
    bench, store = Bench("look Rome"), MemoryStore()
    model_server.plan(calls(("look", {"city": "Rome"})), says("Sunny."))
    async with another(store, model_server, bench) as desk:
        turn = await desk.start("Go")
        await bench.gate.reached()
        draining = await start_drain(desk)
        bench.gate.open()
        await draining
        assert len(model_server.bodies) == 1
    async with another(store, model_server, bench) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Sunny."
    assert bench.done == ["look Rome"]
    assert not any(isinstance(event, RestartEvent) for event in events)
    assert len(model_server.bodies) == 2


async def test_reply_that_was_whole_is_not_requested_again(model_server: ScriptedModel) -> None:
    """The model has requested a tool; the worker is lost while that runs. Nothing that readers saw is taken back."""
    bench, store = Bench("look Rome"), MemoryStore()
    model_server.plan(
        calls(("look", {"city": "Rome"}), text="One moment."),
        says("Done."),
    )
    turn = await broken_off(store, model_server, bench)
    async with another(store, model_server, bench) as desk:
        assert await completed_answer(desk, turn) == "One moment.\n\nDone."
        events = await desk.events(turn)
    assert len(model_server.bodies) == 2
    (restart,) = [event for event in events if isinstance(event, RestartEvent)]
    assert restart.from_position == events.index(restart)
