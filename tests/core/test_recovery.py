"""Turns whose worker is lost or drained continue on another worker from their last finished step."""

import asyncio
from typing import Any

import pytest

from tests.contracts.turns import BOUND, whole_log
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
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import TurnEndedError
from turnwire.core.log.approvals import WaitForApproval
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    ErrorEvent,
    Event,
    RestartEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import Message, ToolRequest, Turn, TurnRecord
from turnwire.core.run.recovery import MOVING_ON, OUTCOME_UNKNOWN

FIND = ToolCallEvent("c1", "find", {"q": "tea"})
FOUND = ToolResultEvent("c1", "find", True, "green")
PAY = ToolCallEvent("c2", "pay", {"amount": 40})
PAID = ToolResultEvent("c2", "pay", True, "paid")


class Actor:
    """An agent that plays one scene per call and waits at each gate in it."""

    on_crash = "resume"

    def __init__(self, *scenes: list[Event | str | Gate | Exception], repeats: str = "") -> None:
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
            elif isinstance(line, Exception):
                raise line
            else:
                yield line


async def lose_turn_at(store: Store, agent: Actor, gate: Gate, *last: Event, **limits: Any) -> TurnRecord:
    """Run a turn to a gate of its agent, then lose its worker."""
    async with open_actor_desk(store, agent, **limits) as desk:
        turn = await desk.start("tea?")
        await gate.reached()
        await wait_for_events(desk, turn, *last)
        await lose_worker(desk)
    return turn


def body(events: list[Event]) -> list[Event]:
    """Return the events between the opening and the end of a log."""
    return events[2:-2]


# Progress


async def test_lost_turn_continues_from_its_last_finished_step(store: Store) -> None:
    gate = Gate()
    actor = Actor(["Let me look. ", FIND, ToolProgressEvent("c1", "soon"), FOUND, "It is gr", gate], ["It is green."])
    turn = await lose_turn_at(store, actor, gate, TokenEvent("It is gr"))
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Let me look. It is green."
    assert body(events)[4:] == [
        TokenEvent("It is gr"),
        RestartEvent(6, "worker_lost"),
        TokenEvent("It is green."),
    ]
    assert events.count(FIND) == events.count(FOUND) == 1
    first, second = actor.turns
    assert (first.progress, second.resumption) == ((), None)
    assert second.progress == (
        Message("assistant", "Let me look. ", tool_calls=(ToolRequest("c1", "find", {"q": "tea"}),)),
        Message("tool", "green", call_id="c1"),
    )


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


async def test_progress_separates_consecutive_calls_without_text(store: Store) -> None:
    gate, both = Gate(), [FIND, PAY, PAID, FOUND]
    later = [ToolCallEvent("c3", "find", {}), ToolResultEvent("c3", "find", False, "none")]
    actor = Actor([*both, *later, gate], ["Done."])
    turn = await lose_turn_at(store, actor, gate, later[-1])
    async with open_actor_desk(store, actor) as desk:
        await desk.end(turn)
    assert [(message.role, len(message.tool_calls), message.call_id) for message in actor.turns[1].progress] == [
        ("assistant", 2, None), ("tool", 0, "c1"), ("tool", 0, "c2"), ("assistant", 1, None), ("tool", 0, "c3"),
    ]  # fmt: skip


async def test_unfinished_steps_of_a_sub_agent_are_void(store: Store) -> None:
    gate, path = Gate(), ("helper",)
    inner = [ToolCallEvent("x1", "rm", {}, agent_path=path), ToolResultEvent("x1", "rm", True, "", agent_path=path)]
    actor = Actor([FIND, *inner, gate], [FIND, FOUND, "Done."], repeats="find")
    turn = await lose_turn_at(store, actor, gate, *inner)
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
    assert body(events)[3:] == [RestartEvent(3, "worker_lost"), FOUND, TokenEvent("Done.")]
    assert [len(message.tool_calls) for message in actor.turns[1].progress] == [1]


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


# Unfinished calls


async def test_unfinished_call_is_repeated_only_after_approval(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, PAY, FOUND, ToolProgressEvent("c2", "half"), gate], [PAY, PAID, "Paid."])
    turn = await lose_turn_at(store, actor, gate, ToolProgressEvent("c2", "half"))
    async with open_actor_desk(store, actor) as desk:
        await wait_until_suspended(desk, turn)
        log = [logged.event for logged in await whole_log(store, turn.id)]
        assert log[6:] == [RestartEvent(5, "worker_lost"), ApprovalRequestEvent("c2", "pay", PAY.args, OUTCOME_UNKNOWN)]
        assert len(actor.turns) == 1
        await desk.runner.decide(turn.id, "c2", approved=True)
        events = await desk.events(turn)
    assert body(events)[7:] == [PAID, TokenEvent("Paid.")]
    (call, result), (decision,) = actor.turns[1].progress, actor.turns[1].resumption.decisions  # type: ignore[union-attr]
    assert [request.call_id for request in call.tool_calls] == ["c1", "c2"]
    assert result == Message("tool", "green", call_id="c1")
    assert (decision.call_id, decision.args, decision.approved, decision.is_repeat) == ("c2", PAY.args, True, True)


async def test_denied_repetition_reports_an_unknown_outcome(store: Store) -> None:
    gate = Gate()
    actor = Actor([PAY, gate], [ToolResultEvent("c2", "pay", False, "?"), "Unclear."])
    turn = await lose_turn_at(store, actor, gate, PAY)
    async with open_actor_desk(store, actor) as desk:
        await wait_for_request(desk, turn, "c2")
        await desk.runner.decide(turn.id, "c2", approved=False, reason="better not")
        assert await completed_answer(desk, turn) == "Unclear."
    (decision,) = actor.turns[1].resumption.decisions  # type: ignore[union-attr]
    assert "Outcome unknown" in decision.denial
    assert "better not" in decision.denial


async def test_unfinished_call_of_a_repeatable_tool_is_repeated(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, gate], [FIND, FOUND, "Green."], repeats="find")
    turn = await lose_turn_at(store, actor, gate, FIND)
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
    assert body(events) == [FIND, RestartEvent(3, "worker_lost"), FOUND, TokenEvent("Green.")]
    assert actor.turns[1].resumption is None


async def test_failing_repeats_method_means_not_repeatable(store: Store) -> None:
    class Unsure(Actor):
        def repeats(self, tool: str) -> bool:
            raise ValueError(tool)

    gate = Gate()
    actor = Unsure([PAY, gate])
    turn = await lose_turn_at(store, actor, gate, PAY)
    async with open_actor_desk(store, actor) as desk:
        await wait_until_suspended(desk, turn)


async def test_approved_unfinished_call_needs_another_approval(store: Store) -> None:
    gate, asks = Gate(), WaitForApproval([ApprovalRequestEvent("c2", "pay", PAY.args)], b"here")
    actor = Actor([asks], ["Paying. ", gate], [PAY, PAID, "Paid."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await gate.reached()
        await wait_for_events(desk, turn, TokenEvent("Paying. "))
        await lose_worker(desk)
    async with open_actor_desk(store, actor) as desk:
        await wait_until_suspended(desk, turn)
        assert len(actor.turns) == 2
        await desk.runner.decide(turn.id, "c2", approved=True)
        assert await completed_answer(desk, turn) == "Paid."
    for resumed in actor.turns[1:]:
        assert resumed.resumption is not None
        assert resumed.resumption.checkpoint == b"here"


@pytest.mark.parametrize(("approved", "repeats"), [(True, "pay"), (False, "")], ids=["repeatable", "denied"])
async def test_decision_survives_a_restart(store: Store, approved: bool, repeats: str) -> None:
    gate, asks = Gate(), WaitForApproval([ApprovalRequestEvent("c2", "pay", PAY.args)], b"here")
    actor = Actor([asks], ["Hm", gate], [PAY, PAID, "Over."], repeats=repeats)
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=approved)
        await gate.reached()
        await wait_for_events(desk, turn, TokenEvent("Hm"))
        await lose_worker(desk)
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Over."
        await desk.runner.decide(turn.id, "c2", approved=approved)  # Repeating a decision changes nothing.
    assert body(events)[2:] == [
        ApprovalResponseEvent("c2", approved), TokenEvent("Hm"), RestartEvent(5, "worker_lost"), PAID,
        TokenEvent("Over."),
    ]  # fmt: skip
    (decision,) = actor.turns[2].resumption.decisions  # type: ignore[union-attr]
    assert (decision.approved, decision.is_repeat) == (approved, False)


async def test_finished_call_is_not_in_the_decisions_after_a_restart(store: Store) -> None:
    gate, asks = Gate(), WaitForApproval([ApprovalRequestEvent("c2", "pay", PAY.args)])
    actor = Actor([asks], [PAY, PAID, "Pa", gate], ["Paid."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await gate.reached()
        await wait_for_events(desk, turn, TokenEvent("Pa"))
        await lose_worker(desk)
    async with open_actor_desk(store, actor) as desk:
        assert await completed_answer(desk, turn) == "Paid."
    assert actor.turns[2].resumption is None
    assert [message.role for message in actor.turns[2].progress] == ["assistant", "tool"]


# Draining


async def test_drain_releases_a_turn_after_its_current_step(store: Store) -> None:
    gate, never = Gate(), Gate()
    actor = Actor(["Looking. ", FIND, PAY, gate, PAID, FOUND, never], ["Green."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        draining = await start_drain(desk)
        gate.open()
        await draining
        assert (await store.find_turn("ann", turn.id)).phase == "queued"
    assert not never.was_reached
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Looking. Green."
    assert body(events)[3:] == [PAID, FOUND, StatusEvent(MOVING_ON), TokenEvent("Green.")]
    assert len(actor.turns[1].progress) == 3


async def test_drain_releases_an_unfinished_step_after_the_grace_period(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, FOUND, "Gr", gate], ["Green."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drain(desk, 0.01)
    async with open_actor_desk(store, actor) as desk:
        events = await desk.events(turn)
        assert await completed_answer(desk, turn) == "Green."
    assert body(events)[2:] == [TokenEvent("Gr"), RestartEvent(4, "shutdown"), TokenEvent("Green.")]


async def test_drain_between_steps_needs_no_restart(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, FOUND, gate], ["Green."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await wait_for_events(desk, turn, FOUND)
        await drain(desk, 0.01)
    async with open_actor_desk(store, actor) as desk:
        assert body(await desk.events(turn))[2:] == [StatusEvent(MOVING_ON), TokenEvent("Green.")]


async def test_drain_during_a_tool_call_asks_for_approval(store: Store) -> None:
    gate = Gate()
    actor = Actor([PAY, gate], [PAY, PAID, "Paid."])
    async with open_actor_desk(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drain(desk, 0.01)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        await desk.runner.decide(turn.id, "c2", approved=True)
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

    actor = Slow([FIND, gate, FOUND])
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
        if turn.progress:
            yield "Green."
            return
        yield FIND
        yield FOUND
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
