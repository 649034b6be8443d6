"""Approvals: suspended turns, decisions about them, and how they continue."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import (
    AgentEvents,
    Gate,
    completed_answer,
    open_desk,
    settle,
    wait_for_request,
    wait_until_suspended,
)
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import ApprovalConflictError, ApprovalNotFoundError, EventRefusedError, TurnNotWaitingError
from turnwire.core.ids import new_id
from turnwire.core.journal.waits import approval
from turnwire.core.log import codec
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    Event,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.people import suspension
from turnwire.core.run import execution


def approval_request(call_id: str = "c1", **args: Any) -> ApprovalRequestEvent:
    return ApprovalRequestEvent(call_id, "send", args or {"to": "bob"}, "it leaves the house")


async def careful(turn: Turn) -> AgentEvents:
    """Request approval for each word of the message, all at once, then report the decisions."""
    yield "I would like to. "
    for decision in await asyncio.gather(*(approval(approval_request(word)) for word in turn.message.split())):
        yield ToolCallEvent(decision.call_id, decision.tool, decision.args)
        yield ToolResultEvent(decision.call_id, decision.tool, decision.approved, decision.reason)
        yield f" {decision.call_id}={'yes' if decision.approved else decision.denial}"


async def types_of(store: Store, turn: TurnRecord) -> list[str]:
    return [str(type(logged.event).__struct_config__.tag) for logged in await whole_log(store, turn.id)]


async def test_suspended_turn_continues_after_the_decision(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        await settle()
        assert len(desk.runner.worker.running) == 0
        assert await types_of(store, turn) == ["session", "message", "token", "tool_call", "approval_request"]
        await desk.runner.decide(turn.id, "c1", approved=True, by="ann")
        events = await desk.events(turn)
        assert events[5] == ApprovalResponseEvent("c1", True, None, "ann")
        assert [type(event).__name__ for event in events[6:]] == [
            "ToolResultEvent", "TokenEvent", "ResponseEvent", "DoneEvent",
        ]  # fmt: skip
        assert await completed_answer(desk, turn) == "I would like to.  c1=yes"


async def test_denial_reaches_the_agent_with_its_reason(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=False, reason="not today", by="ann")
        answer = await completed_answer(desk, turn)
        assert answer.endswith("c1=Denied: not today")


async def test_turn_with_undecided_requests_stays_suspended(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1 c2 c3")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await desk.runner.decide(turn.id, "c1", approved=False)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        await desk.runner.decide(turn.id, "c3", approved=True)
        answer = await completed_answer(desk, turn)
        assert answer.endswith("c1=Denied: the user did not allow this. c2=yes c3=yes")


async def test_concurrent_decisions_are_all_recorded(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        calls = [f"c{number}" for number in range(8)]
        turn = await desk.start(" ".join(calls))
        await wait_until_suspended(desk, turn)
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(desk.runner.decide(turn.id, call, approved=True) for call in calls))
        assert (await desk.end(turn)).outcome == "completed"


async def test_decision_right_after_the_request_is_recorded(store: Store) -> None:
    gate = Gate()

    async def held(turn: Turn) -> AgentEvents:
        await gate.wait()
        async for event in careful(turn):
            yield event

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


async def test_repeated_decision_is_accepted_and_a_different_one_is_a_conflict(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1 c2")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        await desk.runner.decide(turn.id, "c1", approved=True)
        with pytest.raises(ApprovalConflictError, match="approved already"):
            await desk.runner.decide(turn.id, "c1", approved=False)
        await desk.runner.decide(turn.id, "c2", approved=True)
        await desk.end(turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        log = await whole_log(store, turn.id)
        assert len([logged for logged in log if isinstance(logged.event, ApprovalResponseEvent)]) == 2


async def test_decision_about_other_arguments_is_refused(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        with pytest.raises(ApprovalConflictError, match="other arguments"):
            await desk.runner.decide(turn.id, "c1", approved=True, args={"to": "eve"})
        await desk.runner.decide(turn.id, "c1", approved=True, args={"to": "bob"})
        assert (await desk.end(turn)).outcome == "completed"


async def test_decision_about_an_unknown_call_is_refused(store: Store) -> None:
    async def quick(turn: Turn) -> AgentEvents:
        yield "done"

    async with open_desk(store, careful, quick) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        with pytest.raises(ApprovalNotFoundError):
            await desk.runner.decide(turn.id, "c2", approved=True)
        other = await desk.start("c1", agent="quick")
        await desk.end(other)
        with pytest.raises(ApprovalNotFoundError):
            await desk.runner.decide(other.id, "c1", approved=True)


async def test_decision_about_a_cancelled_turn_is_refused(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        await desk.cancel(turn)
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="requested")
        with pytest.raises(TurnNotWaitingError):
            await desk.runner.decide(turn.id, "c1", approved=True)


async def test_agent_that_changes_approved_arguments_fails(store: Store) -> None:
    ran = False

    async def sly(turn: Turn) -> AgentEvents:
        nonlocal ran
        await approval(approval_request("c1", to="bob"))
        yield ToolCallEvent("c1", "send", {"to": "eve"})
        ran = True

    async with open_desk(store, sly) as desk:
        turn = await desk.start()
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert await desk.end(turn) == DoneEvent("failed", turn.session_id, turn.id, reason="approval_conflict")
        assert not ran


async def test_agent_can_be_suspended_repeatedly(store: Store) -> None:
    async def twice(turn: Turn) -> AgentEvents:
        for number in range(2):
            yield f"{number} "
            decision = await approval(approval_request(f"c{number}"))
            yield f"{decision.call_id} "

    async with open_desk(store, twice) as desk:
        turn = await desk.start()
        for call in ("c0", "c1"):
            await wait_for_request(desk, turn, call)
            await desk.runner.decide(turn.id, call, approved=True)
        assert await completed_answer(desk, turn) == "0 c0 1 c1 "


async def test_suspended_turn_blocks_the_session(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        session_id = await desk.session()
        first = await desk.start("c1", session_id=session_id)
        second = await desk.start("c2", session_id=session_id)
        await wait_until_suspended(desk, first)
        assert (await store.find_turn("ann", second.id)).phase == "queued"
        await desk.runner.decide(first.id, "c1", approved=True)
        await desk.end(first)
        await wait_until_suspended(desk, second)


async def test_interrupting_turn_supersedes_a_suspended_one(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        session_id = await desk.session()
        first = await desk.start("c1", session_id=session_id)
        await wait_until_suspended(desk, first)
        second = await desk.start("c2", session_id=session_id, on_busy="interrupt")
        assert await desk.end(first) == DoneEvent("cancelled", session_id, first.id, reason="superseded")
        await wait_until_suspended(desk, second)


async def test_turn_timeout_does_not_count_the_suspension(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk(store, careful, turn_timeout=600) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        _pass_time(monkeypatch, 3_600)
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert (await desk.end(turn)).outcome == "completed"


async def test_overdue_request_is_denied_with_a_reason(backend: StoreBackend) -> None:
    store = await backend.open(lease=2)
    async with open_desk(store, careful, approval_timeout=0.05, lease=2) as desk:
        turn = await desk.start("c1 c2")
        answer = await completed_answer(desk, turn)
        assert "c1=Denied: nobody decided within 0.05 seconds" in answer


async def test_deleted_overdue_turn_does_not_stop_the_lease_loop(
    backend: StoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await backend.open(lease=2)
    unfinished = store.unfinished
    gone = TurnRecord(id=new_id(), session_id="s", principal="ann", agent="careful", message="", waiting_until=1)

    async def unfinished_and_gone(*args: Any, **options: Any) -> list[TurnRecord]:
        return [gone, *await unfinished(*args, **options)]

    async with open_desk(store, careful, approval_timeout=0.05, lease=2) as desk:
        monkeypatch.setattr(store, "unfinished", unfinished_and_gone)
        assert "Denied: nobody decided" in await completed_answer(desk, await desk.start("c1"))


async def test_request_survives_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1 c2")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "c1", approved=True)
        later = await desk.start("c3", session_id=turn.session_id)
    backend.crash()
    store = await backend.open()
    async with open_desk(store, careful) as desk:
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"
        assert (await store.find_turn("ann", later.id)).phase == "queued"
        await desk.runner.decide(turn.id, "c2", approved=False)
        answer = await completed_answer(desk, turn)
        assert answer == "I would like to.  c1=yes c2=Denied: the user did not allow this."
        await wait_until_suspended(desk, later)


async def test_decision_before_a_crash_takes_effect_after_it(backend: StoreBackend) -> None:
    store = await backend.open()
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        desk.runner.worker._draining = True  # The process stops before the decision takes effect.
        async with desk.runner.worker._claiming:
            pass  # A claim under way has ended.
        await desk.runner.decide(turn.id, "c1", approved=True)
    backend.crash()
    store = await backend.open()
    async with open_desk(store, careful) as desk:
        assert (await desk.end(turn)).outcome == "completed"


async def test_overdue_turn_that_cannot_be_read_does_not_keep_others_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk(store, careful, approval_timeout=0) as desk:
        broken, turn = await desk.start("c1"), await desk.start("c1")
        await wait_until_suspended(desk, broken)
        await wait_until_suspended(desk, turn)
        read = suspension.fold_log

        async def fold_log(reader: Store, turn_id: str) -> TurnFold:
            if turn_id == broken.id:
                raise ValueError("not an event")
            return await read(reader, turn_id)

        monkeypatch.setattr(suspension, "fold_log", fold_log)
        await desk.runner.suspended.answer_overdue()
        assert (await desk.end(turn)).outcome == "completed"
        assert (await store.find_turn("ann", broken.id)).phase == "waiting"
    assert "not an event" in caplog.text


async def test_turn_suspended_at_its_limit_of_events_can_be_answered(store: Store) -> None:
    async with open_desk(store, careful, max_events_per_turn=5) as desk:
        turn = await desk.start("c1")
        assert (await wait_until_suspended(desk, turn)).last_position == 5
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert (await desk.end(turn)).reason == "too_many_events"


async def test_shutdown_leaves_suspended_turns_unchanged(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        async with asyncio.timeout(BOUND):
            await desk.runner.drain(60)
        assert (await store.find_turn("ann", turn.id)).phase == "waiting"


async def test_cancel_session_ends_a_suspended_turn(store: Store) -> None:
    async with open_desk(store, careful) as desk:
        turn = await desk.start("c1")
        await wait_until_suspended(desk, turn)
        async with asyncio.timeout(BOUND):
            await desk.runner.cancel_session(turn.session_id)
        await store.delete_session("ann", turn.session_id)


async def test_cancel_during_the_suspension_ends_the_turn(store: Store) -> None:
    gate = Gate()

    async def slow(turn: Turn) -> AgentEvents:
        yield "so "
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await approval(approval_request())

    async with open_desk(store, slow) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        assert "approval_request" not in await types_of(store, turn)


@pytest.mark.parametrize("event", [approval_request(), ApprovalResponseEvent("c1", True)], ids=["request", "response"])
async def test_agent_that_yields_an_approval_event_is_refused(store: Store, event: Event) -> None:
    async def bold(turn: Turn) -> AgentEvents:
        with pytest.raises(EventRefusedError):
            emit(event)
        yield event

    async with open_desk(store, bold) as desk:
        turn = await desk.start()
        assert (await desk.end(turn)).reason == "event_refused"


def _pass_time(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Move the clock of everything that dates an event."""
    real: Callable[[], int] = codec.now_ms
    for module in (execution, codec, suspension):
        monkeypatch.setattr(module, "now_ms", lambda: real() + seconds * 1000)
