"""A turn whose worker is lost, or stopped, goes on with another one from its last finished step."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, Gate, settle
from tests.core.test_approvals import answer_of, asked_for, waits
from turnwire.assembly import as_agent
from turnwire.core.approvals import WaitForApproval
from turnwire.core.budget import Limits
from turnwire.core.contracts import Store
from turnwire.core.emit import emit
from turnwire.core.errors import TurnEndedError
from turnwire.core.events import (
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
from turnwire.core.recovery import MOVING_ON, OUTCOME_UNKNOWN
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import Message, ToolRequest, Turn, TurnRecord

Said = AsyncIterator[Event | str]
FIND = ToolCallEvent("c1", "find", {"q": "tea"})
FOUND = ToolResultEvent("c1", "find", True, "green")
PAY = ToolCallEvent("c2", "pay", {"amount": 40})
PAID = ToolResultEvent("c2", "pay", True, "paid")


class Actor:
    """Plays a scene for each time that it is called, and holds still where one says so."""

    on_crash = "resume"

    def __init__(self, *scenes: list[Event | str | Gate | Exception], repeats: str = "") -> None:
        self.turns: list[Turn] = []
        self._scenes = list(scenes)
        self._repeats = repeats

    def repeats(self, tool: str) -> bool:
        return tool in self._repeats.split()

    async def answer(self, turn: Turn) -> Said:
        self.turns.append(turn)
        for line in self._scenes.pop(0):
            if isinstance(line, Gate):
                await line.wait()
            elif isinstance(line, Exception):
                raise line
            else:
                yield line


@asynccontextmanager
async def desk_of(store: Store, agent: Any, **limits: Any) -> AsyncIterator[Desk]:
    """A runner of its own, as another process would have it."""
    runner = TurnRunner(store, {"actor": as_agent(agent)}, Limits(**limits))
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        async with asyncio.timeout(BOUND):
            await runner.close()


async def lose(desk: Desk) -> None:
    """Its process is gone: what it was doing ends, nothing more is written, and its lease is over."""
    worker = desk.runner._worker
    for loop in worker._loops:
        loop.cancel()
    await asyncio.wait(worker._loops, timeout=BOUND)
    for execution in list(worker.running.values()):
        execution.abandon()
    await desk.store.retire(worker.id)


async def written(desk: Desk, turn: TurnRecord, *events: Event) -> None:
    """Waits until the log ends with these."""
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    try:
        async with asyncio.timeout(BOUND):
            while [one.event for one in await whole_log(desk.store, turn.id)][-len(events) :] != list(events):
                await changed.wait()
                changed.clear()
    finally:
        unwatch()


async def lost_at(store: Store, agent: Actor, gate: Gate, *last: Event, **limits: Any) -> TurnRecord:
    """A turn that was lost when its agent held still at a gate."""
    async with desk_of(store, agent, **limits) as desk:
        turn = await desk.start("tea?")
        await gate.reached()
        await written(desk, turn, *last)
        await lose(desk)
    return turn


def told(events: list[Event]) -> list[Event]:
    """What stands between the opening of a log and its end."""
    return events[2:-2]


# From where it goes on


async def test_a_lost_turn_goes_on_from_its_last_finished_step(store: Store) -> None:
    gate = Gate()
    actor = Actor(["Let me look. ", FIND, ToolProgressEvent("c1", "soon"), FOUND, "It is gr", gate], ["It is green."])
    turn = await lost_at(store, actor, gate, TokenEvent("It is gr"))
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
        assert await answer_of(desk, turn) == "Let me look. It is green."
    assert told(events)[4:] == [
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


async def test_a_turn_with_no_finished_step_begins_anew(store: Store) -> None:
    gate = Gate()
    searched = [SearchEvent("s1", phase, "web", "tea") for phase in ("started", "finished")]
    actor = Actor([*searched, "Half", gate], ["Whole."])
    turn = await lost_at(store, actor, gate, TokenEvent("Half"))
    async with desk_of(store, actor) as desk:
        assert (await desk.events(turn))[5] == RestartEvent(2, "worker_lost")
        assert await answer_of(desk, turn) == "Whole."
    assert actor.turns[1].progress == ()
    state = await store.turn_state(turn.id)
    assert state is not None
    assert (state.text, state.steps) == ("Whole.", [])


async def test_requests_that_follow_each_other_without_a_word_are_told_apart(store: Store) -> None:
    gate, both = Gate(), [FIND, PAY, PAID, FOUND]
    later = [ToolCallEvent("c3", "find", {}), ToolResultEvent("c3", "find", False, "none")]
    actor = Actor([*both, *later, gate], ["Done."])
    turn = await lost_at(store, actor, gate, later[-1])
    async with desk_of(store, actor) as desk:
        await desk.end(turn)
    assert [(message.role, len(message.tool_calls), message.call_id) for message in actor.turns[1].progress] == [
        ("assistant", 2, None), ("tool", 0, "c1"), ("tool", 0, "c2"), ("assistant", 1, None), ("tool", 0, "c3"),
    ]  # fmt: skip


async def test_what_a_sub_agent_was_doing_is_void_and_no_step_of_the_turn(store: Store) -> None:
    gate, path = Gate(), ("helper",)
    inner = [ToolCallEvent("x1", "rm", {}, agent_path=path), ToolResultEvent("x1", "rm", True, "", agent_path=path)]
    actor = Actor([FIND, *inner, gate], [FIND, FOUND, "Done."], repeats="find")
    turn = await lost_at(store, actor, gate, *inner)
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
    assert told(events)[3:] == [RestartEvent(3, "worker_lost"), FOUND, TokenEvent("Done.")]
    assert [len(message.tool_calls) for message in actor.turns[1].progress] == [1]


async def test_a_turn_that_says_nothing_of_it_is_closed(store: Store) -> None:
    gate = Gate()
    actor = Actor(["Half", gate])
    actor.on_crash = "close"
    turn = await lost_at(store, actor, gate, TokenEvent("Half"))
    async with desk_of(store, actor) as desk:
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")
    assert len(actor.turns) == 1


async def test_a_turn_that_costs_too_many_workers_is_closed(store: Store) -> None:
    turn: TurnRecord | None = None
    gates = [Gate() for _ in range(4)]
    actor = Actor(*([f"{number}", gate] for number, gate in enumerate(gates)))
    for gate in gates:
        async with desk_of(store, actor) as desk:
            turn = turn or await desk.start()
            await gate.reached()
            await lose(desk)
    assert turn is not None
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
    assert sum(isinstance(event, RestartEvent) for event in events) == 3
    assert isinstance(events[-2], ErrorEvent)
    assert (await store.turn_state(turn.id)).reason == "worker_lost"  # type: ignore[union-attr]
    assert len(actor.turns) == 4


async def test_a_turn_that_was_to_be_cancelled_when_its_worker_was_lost_is_cancelled(store: Store) -> None:
    gate, never = Gate(), Gate()
    actor = Actor(["Half", gate], [never])
    turn = await lost_at(store, actor, gate, TokenEvent("Half"))
    async with desk_of(store, actor) as desk:
        await never.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_steps_are_counted_over_a_restart_also_those_that_are_void(store: Store) -> None:
    gate = Gate()
    searched = [SearchEvent(f"s{number}", "started", "web", "tea") for number in range(2)]
    actor = Actor([*searched, gate], [*searched])
    turn = await lost_at(store, actor, gate, searched[-1], max_steps_per_turn=3)
    async with desk_of(store, actor, max_steps_per_turn=3) as desk:
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("failed", "max_turns")


# Calls that were under way


async def test_a_call_that_was_under_way_is_not_repeated_before_a_person_has_said_so(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, PAY, FOUND, ToolProgressEvent("c2", "half"), gate], [PAY, PAID, "Paid."])
    turn = await lost_at(store, actor, gate, ToolProgressEvent("c2", "half"))
    async with desk_of(store, actor) as desk:
        await waits(desk, turn)
        log = [one.event for one in await whole_log(store, turn.id)]
        assert log[6:] == [RestartEvent(5, "worker_lost"), ApprovalRequestEvent("c2", "pay", PAY.args, OUTCOME_UNKNOWN)]
        assert len(actor.turns) == 1
        await desk.runner.decide(turn.id, "c2", approved=True)
        events = await desk.events(turn)
    assert told(events)[7:] == [PAID, TokenEvent("Paid.")]
    (call, result), (decision,) = actor.turns[1].progress, actor.turns[1].resumption.decisions  # type: ignore[union-attr]
    assert [request.call_id for request in call.tool_calls] == ["c1", "c2"]
    assert result == Message("tool", "green", call_id="c1")
    assert (decision.call_id, decision.args, decision.approved, decision.is_repeat) == ("c2", PAY.args, True, True)


async def test_who_denies_a_repetition_has_the_model_told_that_its_outcome_is_unknown(store: Store) -> None:
    gate = Gate()
    actor = Actor([PAY, gate], [ToolResultEvent("c2", "pay", False, "?"), "Unclear."])
    turn = await lost_at(store, actor, gate, PAY)
    async with desk_of(store, actor) as desk:
        await asked_for(desk, turn, "c2")
        await desk.runner.decide(turn.id, "c2", approved=False, reason="better not")
        assert await answer_of(desk, turn) == "Unclear."
    (decision,) = actor.turns[1].resumption.decisions  # type: ignore[union-attr]
    assert "Outcome unknown" in decision.denial
    assert "better not" in decision.denial


async def test_a_call_that_may_be_repeated_is(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, gate], [FIND, FOUND, "Green."], repeats="find")
    turn = await lost_at(store, actor, gate, FIND)
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
    assert told(events) == [FIND, RestartEvent(3, "worker_lost"), FOUND, TokenEvent("Green.")]
    assert actor.turns[1].resumption is None


async def test_who_cannot_say_whether_a_call_may_be_repeated_has_not_said_so(store: Store) -> None:
    class Unsure(Actor):
        def repeats(self, tool: str) -> bool:
            raise ValueError(tool)

    gate = Gate()
    actor = Unsure([PAY, gate])
    turn = await lost_at(store, actor, gate, PAY)
    async with desk_of(store, actor) as desk:
        await waits(desk, turn)


async def test_an_approved_call_that_was_under_way_is_asked_about_again(store: Store) -> None:
    gate, asks = Gate(), WaitForApproval([ApprovalRequestEvent("c2", "pay", PAY.args)], b"here")
    actor = Actor([asks], ["Paying. ", gate], [PAY, PAID, "Paid."])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await gate.reached()
        await written(desk, turn, TokenEvent("Paying. "))
        await lose(desk)
    async with desk_of(store, actor) as desk:
        await waits(desk, turn)
        assert len(actor.turns) == 2
        await desk.runner.decide(turn.id, "c2", approved=True)
        assert await answer_of(desk, turn) == "Paid."
    for resumed in actor.turns[1:]:
        assert resumed.resumption is not None
        assert resumed.resumption.checkpoint == b"here"


@pytest.mark.parametrize(("approved", "repeats"), [(True, "pay"), (False, "")], ids=["repeatable", "denied"])
async def test_a_decision_stands_over_a_restart(store: Store, approved: bool, repeats: str) -> None:
    gate, asks = Gate(), WaitForApproval([ApprovalRequestEvent("c2", "pay", PAY.args)], b"here")
    actor = Actor([asks], ["Hm", gate], [PAY, PAID, "Over."], repeats=repeats)
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=approved)
        await gate.reached()
        await written(desk, turn, TokenEvent("Hm"))
        await lose(desk)
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
        assert await answer_of(desk, turn) == "Over."
        await desk.runner.decide(turn.id, "c2", approved=approved)  # Deciding twice is deciding once.
    assert told(events)[2:] == [
        ApprovalResponseEvent("c2", approved), TokenEvent("Hm"), RestartEvent(5, "worker_lost"), PAID,
        TokenEvent("Over."),
    ]  # fmt: skip
    (decision,) = actor.turns[2].resumption.decisions  # type: ignore[union-attr]
    assert (decision.approved, decision.is_repeat) == (approved, False)


async def test_a_decided_call_that_has_ended_is_decided_about_no_more(store: Store) -> None:
    gate, asks = Gate(), WaitForApproval([ApprovalRequestEvent("c2", "pay", PAY.args)])
    actor = Actor([asks], [PAY, PAID, "Pa", gate], ["Paid."])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await gate.reached()
        await written(desk, turn, TokenEvent("Pa"))
        await lose(desk)
    async with desk_of(store, actor) as desk:
        assert await answer_of(desk, turn) == "Paid."
    assert actor.turns[2].resumption is None
    assert [message.role for message in actor.turns[2].progress] == ["assistant", "tool"]


# A worker that is stopped


async def drained(desk: Desk, grace: float = BOUND) -> None:
    async with asyncio.timeout(BOUND):
        await desk.runner.drain(grace)


async def begin_to_drain(desk: Desk) -> asyncio.Task[None]:
    draining = asyncio.create_task(drained(desk))
    async with asyncio.timeout(BOUND):
        while not any(worker.draining for worker in await desk.store.workers()):
            await settle()
    return draining


async def test_a_stopping_worker_leaves_a_turn_to_others_when_its_step_has_ended(store: Store) -> None:
    gate, never = Gate(), Gate()
    actor = Actor(["Looking. ", FIND, PAY, gate, PAID, FOUND, never], ["Green."])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        draining = await begin_to_drain(desk)
        gate.open()
        await draining
        assert (await store.find_turn("ann", turn.id)).phase == "queued"
    assert not never.was_reached
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
        assert await answer_of(desk, turn) == "Looking. Green."
    assert told(events)[3:] == [PAID, FOUND, StatusEvent(MOVING_ON), TokenEvent("Green.")]
    assert len(actor.turns[1].progress) == 3


async def test_what_comes_to_no_border_within_the_grace_is_taken_back_and_left_to_others(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, FOUND, "Gr", gate], ["Green."])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drained(desk, 0.01)
    async with desk_of(store, actor) as desk:
        events = await desk.events(turn)
        assert await answer_of(desk, turn) == "Green."
    assert told(events)[2:] == [TokenEvent("Gr"), RestartEvent(4, "shutdown"), TokenEvent("Green.")]


async def test_a_turn_that_was_stopped_between_steps_needs_nothing_taken_back(store: Store) -> None:
    gate = Gate()
    actor = Actor([FIND, FOUND, gate], ["Green."])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await written(desk, turn, FOUND)
        await drained(desk, 0.01)
    async with desk_of(store, actor) as desk:
        assert told(await desk.events(turn))[2:] == [StatusEvent(MOVING_ON), TokenEvent("Green.")]


async def test_a_tool_that_was_stopped_is_asked_about(store: Store) -> None:
    gate = Gate()
    actor = Actor([PAY, gate], [PAY, PAID, "Paid."])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        await drained(desk, 0.01)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        await desk.runner.decide(turn.id, "c2", approved=True)
    async with desk_of(store, actor) as desk:
        assert await answer_of(desk, turn) == "Paid."


async def test_a_turn_that_is_being_left_to_others_can_be_cancelled(store: Store) -> None:
    gate, leaving = Gate(), Gate()

    class Slow(Actor):
        async def answer(self, turn: Turn) -> Said:
            try:
                async for said in super().answer(turn):
                    yield said
            finally:
                await leaving.wait()

    actor = Slow([FIND, gate, FOUND])
    async with desk_of(store, actor) as desk:
        turn = await desk.start()
        await gate.reached()
        draining = await begin_to_drain(desk)
        gate.open()
        await leaving.reached()
        cancelling = asyncio.create_task(desk.cancel(turn))
        await settle()
        leaving.open()
        await cancelling
        assert (await desk.end(turn)).outcome == "cancelled"
        await draining


async def test_an_agent_that_will_not_stop_writes_nothing_into_a_turn_that_was_left_to_others(store: Store) -> None:
    gate, refused = Gate(), asyncio.Event()

    async def stubborn(turn: Turn) -> Said:
        if turn.progress:
            yield "Green."
            return
        yield FIND
        yield FOUND
        while not gate._open.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        try:
            emit(TokenEvent("late"))
        except TurnEndedError:
            refused.set()

    stubborn.on_crash = "resume"  # type: ignore[attr-defined]
    async with desk_of(store, stubborn) as desk:
        turn = await desk.start()
        await gate.reached()
        await drained(desk, 0.01)
        gate.open()
        async with asyncio.timeout(BOUND):
            await refused.wait()
    async with desk_of(store, stubborn) as desk:
        assert await answer_of(desk, turn) == "Green."


# Who may declare it


@pytest.mark.parametrize("declared", ["resume", "close"])
def test_what_a_function_says_of_itself_is_true_of_its_agent(declared: str) -> None:
    async def yields(turn: Turn) -> Said:
        yield ""

    async def returns(turn: Turn) -> str:
        return ""

    for given in (yields, returns):
        given.on_crash = declared  # type: ignore[attr-defined]
        given.repeats = "find".__eq__  # type: ignore[attr-defined]
        agent: Any = as_agent(given)
        assert (agent.on_crash, agent.repeats("find")) == (declared, True)


def test_a_misspelt_declaration_is_refused() -> None:
    async def agent(turn: Turn) -> Said:
        yield ""

    agent.on_crash = "restart"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="'close' or 'resume'"):
        as_agent(agent)


def test_an_agent_whose_sdk_cannot_go_on_is_refused() -> None:
    from pydantic_ai import Agent

    from turnwire.agents.pydantic_ai import PydanticAIAgent

    wrap: Callable[[Any], Any]
    for wrap in (lambda agent: agent, PydanticAIAgent):
        given: Any = wrap(Agent("test"))
        given.on_crash = "resume"
        with pytest.raises(TypeError, match="cannot have on_crash"):
            as_agent(given)
