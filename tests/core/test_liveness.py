"""Liveness: when a fault of the store has healed, every unfinished turn has an executor, with one process too.

Over every store, with a wrapper that fails, hangs, or commits and loses the answer. `lease` is short, so that renewals
come soon; nothing here depends on how soon.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.contracts.turns import BOUND, claimed, followed, seized, write
from tests.core.desk import (
    AgentEvents,
    Desk,
    Gate,
    completed_answer,
    drain,
    echo,
    event_types,
    failure,
    held,
    open_actor_desk,
    open_desk,
    settle,
    start_held_turn,
)
from tests.core.faulty_store import Fault, FaultyStore
from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import Event, TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import Turn
from turnwire.core.people.budget import Limits
from turnwire.core.run.inputs import take_inputs
from turnwire.core.run.runner import TurnRunner

FAULTS: tuple[Fault, ...] = ("fail", "hang", "lose")


@pytest.fixture
def faulty(store: Store) -> FaultyStore:
    return FaultyStore(store)


async def idle(desk: Any) -> None:
    """Wait until the worker runs nothing."""
    async with asyncio.timeout(BOUND):
        await desk.runner.worker._idle.wait()


@pytest.mark.parametrize("fault", FAULTS)
async def test_end_is_tried_until_it_is_written(faulty: FaultyStore, fault: Fault) -> None:
    async with open_desk(cast(Store, faulty), held) as desk:
        turn, gate = await start_held_turn(desk, None)
        following = await desk.start("gate of the next", session_id=turn.session_id)
        await gate.reached()
        faulty.inject(append=fault)
        gate.open()
        await faulty.hit("append", 3 if fault == "fail" else 1)
        if fault != "lose":
            assert len(desk.runner.worker.running) == 1, "a turn without an end still belongs to this worker"
        faulty.heal()
        # With a lost answer, the commit may have had the whole answer and its end.
        outcomes = {"fail": ["failed"], "hang": ["completed"], "lose": ["completed", "failed"]}
        assert (await desk.end(turn)).outcome in outcomes[fault]
        await desk.cancel(following)
        await idle(desk)


async def test_end_that_loses_nothing_keeps_its_outcome(faulty: FaultyStore) -> None:
    gate = Gate()

    async def tidy(turn: Turn) -> AgentEvents:
        yield "everything"
        await gate.wait()

    async with open_desk(cast(Store, faulty), tidy) as desk:
        turn = await desk.start()
        await followed(desk.store, turn.id, count=3)
        faulty.inject(append="fail")
        gate.open()
        await faulty.hit("append", 2)
        faulty.heal()
        assert await completed_answer(desk, turn) == "everything"


async def test_end_of_a_cancelled_turn_stays_a_cancel(faulty: FaultyStore) -> None:
    async with open_desk(cast(Store, faulty), held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        faulty.inject(append="fail")
        cancelling = asyncio.create_task(desk.cancel(turn))
        await faulty.hit("append", 2)
        faulty.heal()
        await cancelling
        assert (await desk.end(turn)).outcome == "cancelled"


@pytest.mark.parametrize("fault", FAULTS)
async def test_claim_with_a_lost_answer_is_run(faulty: FaultyStore, fault: Fault) -> None:
    async with open_desk(cast(Store, faulty), echo, lease=0.2) as desk:
        faulty.inject(claim_next=fault)
        turn = await desk.start()
        await faulty.hit("claim_next")
        faulty.heal()
        assert await completed_answer(desk, turn) == "You said: hello"
        assert event_types(await desk.events(turn)) == ["session", "message", "token", "response", "done"]


async def test_turn_of_an_idle_worker_that_has_begun_is_interrupted(faulty: FaultyStore) -> None:
    """A turn that has written under this claim must not begin again."""
    async with open_desk(cast(Store, faulty), echo, lease=3) as desk:
        # The worker must not claim the turn first, and its lease must outlast a busy machine.
        faulty.inject(claimed="fail", claim_next="fail")
        orphan = await claimed(desk.store, desk.runner.worker.id)
        await write(desk.store, orphan, TokenEvent("half"))
        faulty.heal()
        done = await desk.end(orphan)
        assert (done.outcome, done.reason) == ("interrupted", "worker_lost")


@pytest.mark.parametrize("fault", FAULTS)
async def test_take_over_with_a_lost_answer_does_not_begin_the_turn_again(faulty: FaultyStore, fault: Fault) -> None:
    orphan = await claimed(cast(Store, faulty), "lost")
    await write(cast(Store, faulty), orphan, TokenEvent("half"))
    async with open_desk(cast(Store, faulty), echo, lease=0.2) as desk:
        faulty.inject(take_over=fault)
        await desk.store.retire("lost")
        await faulty.hit("take_over")
        faulty.heal()
        assert (await desk.end(orphan)).reason == "worker_lost"
        assert event_types(await desk.events(orphan)) == ["session", "message", "token", "error", "done"]


async def test_take_over_with_a_lost_answer_takes_back_what_a_resumable_agent_wrote(faulty: FaultyStore) -> None:
    class Resumable:
        on_crash = "resume"

        async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
            yield "whole"

    store = cast(Store, faulty)
    orphan = await claimed(store, "lost")
    await write(store, orphan, TokenEvent("half"))
    runner = TurnRunner(store, {orphan.agent: Resumable()}, Limits(lease=0.2))
    await runner.open()
    try:
        faulty.inject(take_over="lose")
        await store.retire("lost")
        await faulty.hit("take_over")
        faulty.heal()
        desk = Desk(store, runner)
        assert await completed_answer(desk, orphan) == "whole"
        assert "restart" in event_types(await desk.events(orphan))
    finally:
        await runner.close()


async def test_cancel_of_a_turn_that_its_worker_lets_go_waits_for_the_end(faulty: FaultyStore) -> None:
    async with open_desk(cast(Store, faulty), held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        faulty.inject(append="hang")
        cancelling = asyncio.create_task(desk.cancel(turn))
        await faulty.hit("append")
        desk.runner.worker.running[turn.id].abandon()
        await settle()
        assert not cancelling.done(), "the turn has no end yet"
        faulty.heal()
        await cancelling
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_cancel_of_a_turn_that_was_taken_over_waits_for_the_end(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        taken = await seized(store, await store.find_turn(turn.principal, turn.id), "other")
        cancelling = asyncio.create_task(desk.cancel(turn))
        await idle(desk)
        await settle()
        assert not cancelling.done(), "the end that this worker wrote was refused"
        log = TurnLog(store, taken, Limits())
        await log.restore()
        await log.end("cancelled", reason="requested")
        await cancelling


async def test_message_whose_entry_was_not_committed_is_answered_on_its_own(faulty: FaultyStore) -> None:
    gate = Gate()

    async def steered(turn: Turn) -> AgentEvents:
        if turn.message == "first":
            await gate.wait()
            faulty.inject(append="fail")
            yield "".join(await take_inputs())
        else:
            yield "alone"

    async with open_desk(cast(Store, faulty), steered) as desk:
        turn = await desk.start("first")
        await gate.reached()
        message = await desk.start("second", session_id=turn.session_id, on_busy="steer")
        gate.open()
        await faulty.hit("append")
        faulty.heal()
        assert (await desk.end(turn)).outcome == "failed"
        assert await completed_answer(desk, message) == "alone"


@pytest.mark.parametrize("fault", ["fail", "hang"])
async def test_log_that_cannot_be_read_at_the_start_does_not_release_the_turn(
    faulty: FaultyStore, fault: Fault
) -> None:
    async with open_desk(cast(Store, faulty), echo) as desk:
        faulty.inject(read=fault)
        turn = await desk.start()
        await faulty.hit("read", 1 if fault == "hang" else 3)
        assert len(desk.runner.worker.running) == 1
        faulty.heal()
        assert await completed_answer(desk, turn) == "You said: hello"


async def test_log_that_is_unreadable_for_good_ends_the_turn(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(log: TurnLog) -> None:
        raise ValueError("this is no event")

    monkeypatch.setattr("turnwire.core.run.execution._RETRY", Backoff(first=0.001, longest=0.001))
    monkeypatch.setattr(TurnLog, "restore", unreadable)
    async with open_desk(cast(Store, faulty), echo) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_shutdown_does_not_wait_for_ever_for_an_end_that_cannot_be_written(
    faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.core.run.worker._ENDING_PATIENCE_SECONDS", 0.05)
    async with open_desk(cast(Store, faulty), held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        faulty.inject(append="fail")
        async with asyncio.timeout(BOUND):
            await desk.runner.drain(0)
    faulty.heal()
    async with open_desk(cast(Store, faulty), held) as desk:
        assert (await desk.end(turn)).outcome == "interrupted"


async def test_cancel_returns_although_the_end_cannot_be_written(faulty: FaultyStore) -> None:
    async with open_desk(cast(Store, faulty), held, lease=0.2, cancel_patience=0.1) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        faulty.inject(append="fail")
        await desk.cancel(turn)
        faulty.heal()
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_failing_hand_over_ends_the_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in the hand-over must not leave the turn without an end."""

    class Resumable:
        on_crash = "resume"

        async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
            yield "half"
            await asyncio.Event().wait()

    def fail(*arguments: object) -> None:
        raise ValueError("not now")

    monkeypatch.setattr("turnwire.core.run.execution.recover", fail)
    async with open_actor_desk(store, Resumable()) as desk:
        turn = await desk.start()
        await followed(store, turn.id, count=3)
        await drain(desk, 0)
        assert (await failure(desk, turn)).code == "agent_failed"
