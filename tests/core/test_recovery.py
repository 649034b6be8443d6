"""Turns whose worker is lost or drained continue on another worker from their last finished step."""

import asyncio
from typing import Any

import pytest
from msgspec import Struct

from tests.contracts.turns import BOUND
from tests.core.desk import (
    AgentEvents,
    Gate,
    completed_answer,
    drain,
    lose_worker,
    open_actor_desk,
    settle,
    start_drain,
    wait_for_events,
    wait_for_request,
    wait_until_suspended,
)
from turnwire import journaled
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import TurnEndedError
from turnwire.core.log.codec import log_event
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    ErrorEvent,
    Event,
    MessageEvent,
    RestartEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.state import TurnFold, fold_events
from turnwire.core.log.turns import Message, ToolRequest, Turn, TurnRecord
from turnwire.core.run.recovery import MOVING_ON, progress, unfinished_calls

FIND = ToolCallEvent("c1", "find", {"q": "tea"})
FOUND = ToolResultEvent("c1", "find", True, "green")
PAY_ID = "/step/pay/1"


class Work(Struct, frozen=True):
    """A step that an actor records in its journal. It waits at its gate, if it has one."""

    name: str
    gate: Gate | None = None

    async def run(self) -> str:
        if self.gate is not None:
            await self.gate.wait()
        return f"{self.name} done"


class Actor:
    """An agent that plays one scene per call and waits at each gate in it."""

    on_crash = "resume"

    def __init__(self, *scenes: list[Event | str | Gate | Work], repeats: str = "") -> None:
        self.turns: list[Turn] = []
        self._scenes = list(scenes)
        self._repeats = repeats

    def repeats(self, tool: str) -> bool:
        return tool in self._repeats.split()

    async def answer(self, turn: Turn) -> AgentEvents:
        self.turns.append(turn)
        for line in self._scenes.pop(0):
            if isinstance(line, Gate):
                await line.wait()
            elif isinstance(line, Work):
                await journaled(line.name, line.run)
            else:
                yield line


async def lose_turn_at(store: Store, agent: Actor, gate: Gate, *last: Event, **limits: Any) -> TurnRecord:
    """Run a turn to a gate of its agent, then lose its worker."""
    async with open_actor_desk(store, agent, **limits) as desk:
        turn = await desk.start("tea?")
        await gate.reached()
        if last:
            await wait_for_events(desk, turn, *last)
        await lose_worker(desk)
    return turn


def body(events: list[Event]) -> list[Event]:
    """Return the events between the opening and the end of a log."""
    return events[2:-2]


# Steps


async def test_lost_turn_continues_from_its_last_finished_step(store: Store) -> None:
    gate, look, again = Gate(), Work("look"), Work("look", Gate())
    shown: list[Event | str] = ["Let me look. ", FIND, ToolProgressEvent("c1", "soon")]
    actor = Actor([*shown, look, FOUND, "It is gr", gate], [*shown, again, FOUND, "It is green."])
    turn = await lose_turn_at(store, actor, gate, TokenEvent("It is gr"))
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Let me look. It is green."
    assert body(events)[4:] == [TokenEvent("It is gr"), RestartEvent(6, "worker_lost"), TokenEvent("It is green.")]
    assert events.count(FIND) == events.count(FOUND) == 1
    assert [turn.progress for turn in actor.turns] == [(), ()]


async def test_lost_turn_without_a_finished_step_starts_over(store: Store) -> None:
    gate = Gate()
    searched = [SearchEvent("s1", phase, "web", "tea") for phase in ("started", "finished")]
    actor = Actor([*searched, "Half", gate], ["Whole."])
    turn = await lose_turn_at(store, actor, gate, TokenEvent("Half"))
    async with open_actor_desk(store, actor) as desk:
        assert (await desk.events(turn))[5] == RestartEvent(2, "worker_lost")
        assert await completed_answer(desk, turn) == "Whole."
    assert actor.turns[1].progress == ()
    state = await store.turn_state(turn.id)
    assert state is not None
    assert (state.text, state.steps) == ("Whole.", [])


async def test_lost_turn_of_an_agent_without_on_crash_is_interrupted(store: Store) -> None:
    gate = Gate()
    actor = Actor(["Half", gate])
    actor.on_crash = "close"
    turn = await lose_turn_at(store, actor, gate, TokenEvent("Half"))
    async with open_actor_desk(store, actor) as desk:
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")
    assert len(actor.turns) == 1


async def test_turn_with_too_many_restarts_is_interrupted(store: Store) -> None:
    turn: TurnRecord | None = None
    gates = [Gate() for _ in range(4)]
    actor = Actor(*([f"{number}", gate] for number, gate in enumerate(gates)))
    for gate in gates:
        async with open_actor_desk(store, actor) as desk:
            turn = turn or await desk.start()
            await gate.reached()
            await lose_worker(desk)
    assert turn is not None
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
    assert sum(isinstance(event, RestartEvent) for event in events) == 3
    assert isinstance(events[-2], ErrorEvent)
    assert (await store.turn_state(turn.id)).reason == "worker_lost"  # type: ignore[union-attr]
    assert len(actor.turns) == 4


async def test_lost_turn_with_a_cancel_command_is_cancelled(store: Store) -> None:
    gate, never = Gate(), Gate()
    actor = Actor(["Half", gate], [never])
    turn = await lose_turn_at(store, actor, gate, TokenEvent("Half"))
    async with open_actor_desk(store, actor) as desk:
        await never.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_steps_count_across_restarts_including_void_ones(store: Store) -> None:
    gate = Gate()
    searched = [SearchEvent(f"s{number}", "started", "web", "tea") for number in range(2)]
    actor = Actor([*searched, gate], [*searched])
    turn = await lose_turn_at(store, actor, gate, searched[-1], max_steps_per_turn=3)
    async with open_actor_desk(store, actor, max_steps_per_turn=3) as desk:
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("failed", "max_turns")


# Steps that were running


async def test_failing_repeats_method_means_not_repeatable(store: Store) -> None:
    class Unsure(Actor):
        def repeats(self, tool: str) -> bool:
            raise ValueError(tool)

    gate = Gate()
    actor = Unsure([Work("pay", gate)])
    turn = await lose_turn_at(store, actor, gate)
    async with open_actor_desk(store, actor) as desk:
        await wait_until_suspended(desk, turn)


async def test_approved_step_that_broke_off_needs_another_approval(store: Store) -> None:
    first, second = Gate(), Gate()
    actor = Actor([Work("pay", first)], [Work("pay", second)], [Work("pay"), "Paid."])
    turn = await lose_turn_at(store, actor, first)
    async with open_actor_desk(store, actor) as desk:
        await wait_for_request(desk, turn, PAY_ID)
        await desk.runner.decide(turn.id, PAY_ID, approved=True)
        await second.reached()
        await lose_worker(desk)
    async with open_actor_desk(store, actor) as desk:
        await wait_until_suspended(desk, turn)
        assert len(actor.turns) == 2
        await desk.runner.decide(turn.id, PAY_ID, approved=True)
        assert await completed_answer(desk, turn) == "Paid."


# Draining


async def test_drain_releases_an_unfinished_step_after_the_grace_period(store: Store) -> None:
    gate = Gate()
    actor = Actor([Work("look"), FIND, "Gr", gate], [Work("look"), FIND, "Green."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drain(desk, 0.01)
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Green."
    assert body(events) == [FIND, TokenEvent("Gr"), RestartEvent(3, "shutdown"), TokenEvent("Green.")]


async def test_drain_between_steps_needs_no_restart(store: Store) -> None:
    gate = Gate()
    actor = Actor(["Tea: ", Work("look"), gate], ["Tea: ", Work("look"), "Green."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drain(desk, 0.01)
        assert (await store.find_turn("ann", turn.id)).phase == "queued"
    async with open_actor_desk(store, actor) as desk:
        assert body(await desk.events(turn)) == [TokenEvent("Tea: "), StatusEvent(MOVING_ON), TokenEvent("Green.")]


async def test_drain_during_a_step_asks_for_approval(store: Store) -> None:
    gate = Gate()
    actor = Actor([Work("pay", gate)], [Work("pay"), "Paid."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drain(desk, 0.01)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        await desk.runner.decide(turn.id, PAY_ID, approved=True)
    async with open_actor_desk(store, actor) as desk:
        assert await completed_answer(desk, turn) == "Paid."


async def test_cancel_during_a_release_cancels_the_turn(store: Store) -> None:
    gate, leaving = Gate(), Gate()

    class Slow(Actor):
        async def answer(self, turn: Turn) -> AgentEvents:
            try:
                async for event in super().answer(turn):
                    yield event
            finally:
                await leaving.wait()

    actor = Slow([gate, Work("look")])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        draining = await start_drain(desk)
        gate.open()
        await leaving.reached()
        cancelling = asyncio.create_task(desk.cancel(turn))
        await settle()
        leaving.open()
        await cancelling
        assert (await desk.end(turn)).outcome == "cancelled"
        await draining


async def test_agent_that_ignores_a_drain_cannot_write_to_the_released_turn(store: Store) -> None:
    gate, refused = Gate(), asyncio.Event()

    async def stubborn(turn: Turn) -> AgentEvents:
        await journaled("look", Work("look").run)
        if gate.is_open:
            yield "Green."
            return
        while not gate.is_open:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        try:
            emit(TokenEvent("late"))
        except TurnEndedError:
            refused.set()

    stubborn.on_crash = "resume"  # type: ignore[attr-defined]
    async with open_actor_desk(store, stubborn) as desk:
        turn = await desk.start()
        await gate.reached()
        await drain(desk, 0.01)
        gate.open()
        async with asyncio.timeout(BOUND):
            await refused.wait()
    async with open_actor_desk(store, stubborn) as desk:
        assert await completed_answer(desk, turn) == "Green."


# The `on_crash` attribute


@pytest.mark.parametrize("declared", ["resume", "close"])
def test_attributes_of_a_function_apply_to_its_agent(declared: str) -> None:
    async def yields(turn: Turn) -> AgentEvents:
        yield ""

    async def returns(turn: Turn) -> str:
        return ""

    for function in (yields, returns):
        function.on_crash = declared  # type: ignore[attr-defined]
        function.repeats = "find".__eq__  # type: ignore[attr-defined]
        agent: Any = as_agent(function)
        assert (agent.on_crash, agent.repeats("find")) == (declared, True)


def test_invalid_on_crash_is_refused() -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield ""

    agent.on_crash = "restart"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="'close' or 'resume'"):
        as_agent(agent)


# What is left after a restart

CALLS = [ToolCallEvent(f"c{number}", "find", {"n": number}) for number in (1, 2, 3)]
RESULTS = [ToolResultEvent(f"c{number}", "find", True, f"r{number}") for number in (1, 2, 3)]


def fold_of(*events: Event) -> TurnFold:
    opening = (SessionEvent("s1", "t1", "echo"), MessageEvent("hello", "ann", "http"))
    return fold_events(log_event(event, position, 1) for position, event in enumerate((*opening, *events), start=1))


def test_unfinished_steps_of_a_sub_agent_are_void_after_a_restart() -> None:
    inner = ToolCallEvent("c9", "find", {}, agent_path=("helper",))
    events = (CALLS[0], inner, TokenEvent("Wa", agent_path=("helper",)))
    assert fold_of(*events).restarts.border == 3, "a step of a sub-agent may be repeated"
    fold = fold_of(*events, RestartEvent(3, "worker_lost"))
    assert [position for position in range(1, 6) if fold.restarts.is_void(position)] == [4, 5]
    assert [step.id for step in fold.state().steps] == ["c1"]
    assert [call.id for call in unfinished_calls(fold)] == ["c1"]


def test_progress_groups_the_calls_that_a_model_made_at_once() -> None:
    first, second, third = CALLS
    fold = fold_of(TokenEvent("Look: "), first, second, RESULTS[1], RESULTS[0], third, RESULTS[2])
    requests = [ToolRequest(call.call_id, call.tool, call.args) for call in CALLS]
    assert progress(fold) == (
        Message("assistant", "Look: ", tool_calls=(requests[0], requests[1])),
        Message("tool", "r1", call_id="c1"),
        Message("tool", "r2", call_id="c2"),
        Message("assistant", "", tool_calls=(requests[2],)),
        Message("tool", "r3", call_id="c3"),
    )
