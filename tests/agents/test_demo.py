"""Tests of the scripted demo: its length, what it shows, and that it continues after a crash at any beat."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.core.desk import Desk, Gate, lose_worker, open_actor_desk, wait_until_suspended
from tests.simulated_time import SimulatedTimeLoop
from turnwire.agents.demo import APPROVE, WATCH, DemoAgent
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    DoneEvent,
    Event,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    SearchEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.stores.memory import MemoryStore

BUY = "buy_tickets"


class CrashingDemo(DemoAgent):
    """The demo that hangs after some outputs, as if its process had been killed there."""

    def __init__(self, outputs: int) -> None:
        super().__init__(pace=0)
        self.outputs = outputs
        self.gate = Gate()

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        async for output in super().answer(turn):
            if self.outputs == 0:
                await self.gate.wait()
            self.outputs -= 1
            yield output


async def approve(desk: Desk, turn: TurnRecord, approved: bool = True) -> None:
    await wait_until_suspended(desk, turn)
    await desk.runner.decide(turn.id, BUY, approved=approved)


async def play(message: str, approved: bool = True) -> list[Event]:
    async with open_actor_desk(MemoryStore(), DemoAgent(pace=0)) as desk:
        turn = await desk.start(message)
        await approve(desk, turn, approved)
        return await desk.events(turn)


def text_of(events: list[Event]) -> str:
    (response,) = [event for event in events if isinstance(event, ResponseEvent)]
    return response.content


def kept(events: list[Event]) -> list[Event]:
    """Return the events that no restart has made void."""
    kept_events: list[Event] = []
    positions: list[int] = []
    for position, event in enumerate(events, 1):
        if isinstance(event, RestartEvent):
            while positions and positions[-1] > event.from_position:
                positions.pop()
                kept_events.pop()
        else:
            kept_events.append(event)
            positions.append(position)
    return kept_events


async def test_demo_shows_every_kind_of_step() -> None:
    events = await play(WATCH)
    text = text_of(events)
    assert "scripted demo: no model" in text
    assert "| :--- |" in text
    assert "```python" in text
    assert any(isinstance(event, ReasoningEvent) for event in events)
    assert any(isinstance(event, ToolProgressEvent) and event.fraction for event in events)
    assert any(isinstance(event, SearchEvent) and event.hits and event.agent_path for event in events)
    assert any(isinstance(event, ToolCallEvent) and event.agent_path == ("researcher",) for event in events)
    assert any(isinstance(event, CitationEvent) and event.supporting_quote for event in events)
    assert any(isinstance(event, ApprovalRequestEvent) for event in events)
    failed = [event for event in events if isinstance(event, ToolResultEvent) and not event.success]
    retried = [event for event in events if isinstance(event, ToolResultEvent) and event.tool == failed[0].tool]
    assert [event.success for event in retried] == [False, True]
    running = most_running = 0
    for event in events:
        running += isinstance(event, ToolCallEvent) - isinstance(event, ToolResultEvent)
        most_running = max(most_running, running)
    assert most_running >= 3
    response = events[-2]
    assert isinstance(response, ResponseEvent)
    assert response.mode == "scripted"


@pytest.mark.parametrize("message", [WATCH, APPROVE])
async def test_denied_purchase_is_told_and_not_run(message: str) -> None:
    events = await play(message, approved=False)
    assert "You denied the purchase" in text_of(events)
    (result,) = [event for event in events if isinstance(event, ToolResultEvent) and event.tool == BUY]
    assert not result.success


async def test_short_script_waits_for_approval_at_once() -> None:
    events = await play(APPROVE)
    assert [event.tool for event in events if isinstance(event, ToolCallEvent)] == [BUY]
    assert "You approved the purchase" in text_of(events)


def test_demo_lasts_twenty_to_forty_seconds() -> None:
    """Measure on a simulated clock; the decision takes no time."""

    async def measure() -> float:
        clock = asyncio.get_running_loop().time
        async with open_actor_desk(MemoryStore(), DemoAgent()) as desk:
            began = clock()
            turn = await desk.start(WATCH)
            await approve(desk, turn)
            assert (await desk.end(turn)).outcome == "completed"
            return clock() - began

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        assert 20 <= runner.run(measure()) <= 40


async def test_lost_demo_continues_at_the_beat_after_its_last_tool() -> None:
    """Lose the worker after each output that is not text, and after a few that are."""
    whole = await play(WATCH)
    # Turnwire writes the first two events, the approval, and the end.
    by_turnwire = (ApprovalRequestEvent, ApprovalResponseEvent)
    outputs = [event for event in whole[2:-1] if not isinstance(event, by_turnwire)]
    purchase = next(i for i, event in enumerate(outputs) if isinstance(event, ToolCallEvent) and event.tool == BUY)
    is_text = (TokenEvent, ReasoningEvent)
    crashes = [index for index, event in enumerate(outputs) if not isinstance(event, is_text) or index % 40 == 0]
    for outputs_before in crashes:
        store, crashing = MemoryStore(), CrashingDemo(outputs_before)
        async with open_actor_desk(store, crashing) as desk:
            turn = await desk.start(WATCH)
            approving = asyncio.create_task(approve(desk, turn))
            await crashing.gate.reached()
            approving.cancel()
            await lose_worker(desk)
        async with open_actor_desk(store, DemoAgent(pace=0)) as desk:
            if outputs_before <= purchase:
                await approve(desk, turn)
            events = await desk.events(turn)
        assert sum(isinstance(event, RestartEvent) for event in events) == 1
        assert text_of(events).replace(turn.id, "") == text_of(whole).replace(session_turn(whole), "")
        calls = [event for event in kept(events) if isinstance(event, ToolCallEvent | ToolResultEvent)]
        assert calls == [event for event in whole if isinstance(event, ToolCallEvent | ToolResultEvent)]


def session_turn(events: list[Event]) -> str:
    done = events[-1]
    assert isinstance(done, DoneEvent)
    return done.turn_id
