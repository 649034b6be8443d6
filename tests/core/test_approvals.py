"""A turn that waits for a person: what it holds, who may decide, and how it goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from tests.contracts.stores import Place
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, Gate, open_desk, settle
from turnwire.core import codec, execution
from turnwire.core import suspension as waits_module
from turnwire.core.approvals import WaitForApproval
from turnwire.core.contracts import Store
from turnwire.core.emit import emit
from turnwire.core.errors import ApprovalConflictError, ApprovalNotFoundError, EventRefusedError, TurnNotWaitingError
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    ResponseEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.follow import follow
from turnwire.core.ids import new_id
from turnwire.core.turns import Turn, TurnRecord

Said = AsyncIterator[Event | str]


def asks(call_id: str = "c1", **args: Any) -> ApprovalRequestEvent:
    return ApprovalRequestEvent(call_id, "send", args or {"to": "bob"}, "it leaves the house")


async def careful(turn: Turn) -> Said:
    """Asks once for each word of the message, all at once, then says what was decided."""
    if turn.resumption is None:
        yield "I would like to. "
        raise WaitForApproval([asks(word) for word in turn.message.split()], checkpoint=b"left behind")
    yield f"[{turn.resumption.checkpoint.decode()}]"
    for decision in turn.resumption.decisions:
        yield ToolCallEvent(decision.call_id, decision.tool, decision.args)
        yield ToolResultEvent(decision.call_id, decision.tool, decision.approved, decision.reason)
        yield f" {decision.call_id}={'yes' if decision.approved else decision.denial}"


async def waits(desk: Desk, turn: TurnRecord) -> TurnRecord:
    """The turn once it waits."""
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    try:
        async with asyncio.timeout(BOUND):
            while (record := await desk.store.find_turn("ann", turn.id)).phase != "waiting":
                await changed.wait()
                changed.clear()
        return record
    finally:
        unwatch()


async def asked_for(desk: Desk, turn: TurnRecord, call_id: str) -> None:
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id)) as batches:
        async for events in batches:
            for logged in events:
                if isinstance(logged.event, ApprovalRequestEvent) and logged.event.call_id == call_id:
                    return


async def answer_of(desk: Desk, turn: TurnRecord) -> str:
    """What a completed turn says."""
    *_, response, done = await desk.events(turn)
    assert isinstance(response, ResponseEvent)
    assert isinstance(done, DoneEvent)
    assert done.outcome == "completed"
    return response.content


async def types_of(store: Store, turn: TurnRecord) -> list[str]:
    return [str(type(logged.event).__struct_config__.tag) for logged in await whole_log(store, turn.id)]


async def test_a_turn_waits_until_it_is_decided_and_then_goes_on(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        await settle()
        assert desk.runner.running_count == 0
        assert await types_of(store, turn) == ["session", "message", "token", "tool_call", "approval_request"]
        await desk.runner.decide(turn.id, "c1", approved=True, by="ann")
        events = await desk.events(turn)
        assert events[5] == ApprovalResponseEvent("c1", True, None, "ann")
        assert [type(event).__name__ for event in events[6:]] == [
            "TokenEvent", "ToolResultEvent", "TokenEvent", "ResponseEvent", "DoneEvent",
        ]  # fmt: skip
        assert await answer_of(desk, turn) == "I would like to. [left behind] c1=yes"
        assert await store.checkpoint(turn.id) == b""


async def test_a_denial_is_told_with_its_reason(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=False, reason="not today", by="ann")
        answer = await answer_of(desk, turn)
        assert answer.endswith("c1=Denied: not today")


async def test_it_goes_on_only_when_all_is_decided(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1 c2 c3")
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await desk.runner.decide(turn.id, "c1", approved=False)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        await desk.runner.decide(turn.id, "c3", approved=True)
        answer = await answer_of(desk, turn)
        assert answer.endswith("c1=Denied: the user did not allow this. c2=yes c3=yes")


async def test_decisions_at_once_are_all_taken(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        calls = [f"c{number}" for number in range(8)]
        turn = await desk.start(" ".join(calls))
        await waits(desk, turn)
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(desk.runner.decide(turn.id, call, approved=True) for call in calls))
        assert (await desk.end(turn)).outcome == "completed"


async def test_a_decision_may_come_the_moment_it_is_asked_for(store: Store) -> None:
    gate = Gate()

    async def held(turn: Turn) -> Said:
        await gate.wait()
        async for said in careful(turn):
            yield said

    async with open_desk(store, held) as desk:
        turn = await desk.start("c1")
        deciding: list[asyncio.Task[None]] = []

        def decide(events: Any) -> None:
            if any(logged.type == "approval_request" for logged in events):
                deciding.append(asyncio.create_task(desk.runner.decide(turn.id, "c1", approved=True)))

        store.watch(turn.id, decide)
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"
        await asyncio.gather(*deciding)


async def test_the_same_decision_again_is_the_same_and_another_is_a_conflict(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1 c2")
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        await desk.runner.decide(turn.id, "c1", approved=True)
        with pytest.raises(ApprovalConflictError, match="approved already"):
            await desk.runner.decide(turn.id, "c1", approved=False)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await desk.end(turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        log = await whole_log(store, turn.id)
        assert len([logged for logged in log if isinstance(logged.event, ApprovalResponseEvent)]) == 2


async def test_a_decision_about_other_arguments_is_refused(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        with pytest.raises(ApprovalConflictError, match="other arguments"):
            await desk.runner.decide(turn.id, "c1", approved=True, args={"to": "eve"})
        await desk.runner.decide(turn.id, "c1", approved=True, args={"to": "bob"})
        assert (await desk.end(turn)).outcome == "completed"


async def test_nobody_can_decide_what_was_not_asked(store: Store) -> None:
    async def quick(turn: Turn) -> Said:
        yield "done"

    async with open_desk(store, careful, quick) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        with pytest.raises(ApprovalNotFoundError):
            await desk.runner.decide(turn.id, "c2", approved=True)
        other = await desk.start("c1", agent="quick")
        await desk.end(other)
        with pytest.raises(ApprovalNotFoundError):
            await desk.runner.decide(other.id, "c1", approved=True)


async def test_a_turn_that_was_cancelled_cannot_be_decided_any_more(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        await desk.cancel(turn)
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="requested")
        with pytest.raises(TurnNotWaitingError):
            await desk.runner.decide(turn.id, "c1", approved=True)


async def test_an_agent_that_changes_the_arguments_after_the_approval_fails(store: Store) -> None:
    ran = False

    async def sly(turn: Turn) -> Said:
        nonlocal ran
        if turn.resumption is None:
            raise WaitForApproval([asks("c1", to="bob")])
        yield ToolCallEvent("c1", "send", {"to": "eve"})
        ran = True

    async with open_desk(store, sly) as desk:
        turn = await desk.start()
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert await desk.end(turn) == DoneEvent("failed", turn.session_id, turn.id, reason="approval_conflict")
        assert not ran


async def test_an_agent_may_wait_again_and_again(store: Store) -> None:
    async def twice(turn: Turn) -> Said:
        left = turn.resumption.checkpoint if turn.resumption else b""
        if left != b"..":
            yield f"{len(left)} "
            raise WaitForApproval([asks(f"c{len(left)}")], left + b".")
        assert turn.resumption is not None
        yield " ".join(decision.call_id for decision in turn.resumption.decisions)

    async with open_desk(store, twice) as desk:
        turn = await desk.start()
        for call in ("c0", "c1"):
            await asked_for(desk, turn, call)
            await desk.runner.decide(turn.id, call, approved=True)
        answer = await answer_of(desk, turn)
        # The second time it is told of the second decision only.
        assert answer == "0 1 c1"


async def test_a_waiting_turn_keeps_the_session_s_place(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        session_id = await desk.session()
        first = await desk.start("c1", session_id=session_id)
        second = await desk.start("c2", session_id=session_id)
        await waits(desk, first)
        assert (await store.find_turn("ann", second.id)).phase == "queued"
        await desk.runner.decide(first.id, "c1", approved=True)
        await desk.end(first)
        await waits(desk, second)


async def test_a_newer_message_may_take_its_place(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        session_id = await desk.session()
        first = await desk.start("c1", session_id=session_id)
        await waits(desk, first)
        second = await desk.start("c2", session_id=session_id, on_busy="interrupt")
        assert await desk.end(first) == DoneEvent("cancelled", session_id, first.id, reason="superseded")
        await waits(desk, second)


async def test_the_turn_s_clock_stands_still_while_it_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk(store, careful, turn_timeout=5) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        _pass_time(monkeypatch, 3_600)
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert (await desk.end(turn)).outcome == "completed"


async def test_a_wait_that_is_too_long_is_a_denial_that_says_so(place: Place) -> None:
    store = await place.open(lease=2)
    async with open_desk(store, careful, approval_timeout=0.05, lease=2) as desk:
        turn = await desk.start("c1 c2")
        answer = await answer_of(desk, turn)
        assert "c1=Denied: nobody decided within 0.05 seconds" in answer


async def test_a_turn_that_is_gone_meanwhile_does_not_end_the_upkeep(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await place.open(lease=2)
    waiting = store.waiting
    gone = TurnRecord(id=new_id(), session_id="s", principal="ann", agent="careful", message="", waiting_until=1)

    async def waiting_and_gone(until: int | None = None) -> list[TurnRecord]:
        return [gone, *await waiting(until)]

    async with open_desk(store, careful, approval_timeout=0.05, lease=2) as desk:
        monkeypatch.setattr(store, "waiting", waiting_and_gone)
        assert "Denied: nobody decided" in await answer_of(desk, await desk.start("c1"))


async def test_what_is_asked_outlives_a_crash(place: Place) -> None:
    store = await place.open()
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1 c2")
        await waits(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        later = await desk.start("c3", session_id=turn.session_id)
    place.crash()
    store = await place.open()
    async with open_desk(store, careful) as desk:
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        assert (await store.find_turn("ann", later.id)).phase == "queued"
        await desk.runner.decide(turn.id, "c2", approved=False)
        answer = await answer_of(desk, turn)
        assert answer == "I would like to. [left behind] c1=yes c2=Denied: the user did not allow this."
        await waits(desk, later)


async def test_a_decision_that_was_taken_before_a_crash_is_acted_upon_after_it(place: Place) -> None:
    store = await place.open()
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        desk.runner._worker._draining = True  # The process goes down before anything follows from the decision.
        await desk.runner.decide(turn.id, "c1", approved=True)
    place.crash()
    store = await place.open()
    async with open_desk(store, careful) as desk:
        assert (await desk.end(turn)).outcome == "completed"


async def test_a_server_that_goes_down_leaves_waiting_turns_alone(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        async with asyncio.timeout(BOUND):
            await desk.runner.drain(60)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"


async def test_a_deleted_session_s_waiting_turn_is_ended(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await waits(desk, turn)
        async with asyncio.timeout(BOUND):
            await desk.runner.cancel_session(turn.session_id)
        await store.delete_session("ann", turn.session_id)


async def test_a_stop_while_it_is_being_parked_stops_it(store: Store) -> None:
    gate = Gate()

    async def slow(turn: Turn) -> Said:
        yield "so "
        try:
            await gate.wait()
        except asyncio.CancelledError:
            raise WaitForApproval([asks()]) from None

    async with open_desk(store, slow) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        assert "approval_request" not in await types_of(store, turn)


@pytest.mark.parametrize("event", [asks(), ApprovalResponseEvent("c1", True)], ids=["request", "response"])
async def test_an_agent_cannot_write_requests_or_decisions_itself(store: Store, event: Event) -> None:
    async def bold(turn: Turn) -> Said:
        with pytest.raises(EventRefusedError):
            emit(event)
        yield event

    async with open_desk(store, bold) as desk:
        turn = await desk.start()
        assert (await desk.end(turn)).reason == "event_refused"


def _pass_time(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """All that tells the time of an event is so much later from now on."""
    real: Callable[[], int] = codec.now_ms
    for module in (execution, codec, waits_module):
        monkeypatch.setattr(module, "now_ms", lambda: real() + seconds * 1000)
