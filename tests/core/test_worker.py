"""The worker: shutdown, and turns of lost processes."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, claimed, queued_turns, started, write
from tests.core.desk import (
    AgentEvents,
    Desk,
    echo,
    event_types,
    failure,
    held,
    lose_worker,
    open_desk,
    settle,
    start_held_turn,
    wait_for_events,
)
from tests.simulated_time import SimulatedTimeLoop
from turnwire.agents.loader import GeneratorAgent
from turnwire.core.contracts.stores import Store, UnfinishedFilter
from turnwire.core.errors import ShuttingDownError
from turnwire.core.ids import new_id
from turnwire.core.log.events import (
    DoneEvent,
    ErrorEvent,
    TokenEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.turns import WORKER_LOST, Turn, TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore


async def silent(turn: Turn) -> AgentEvents:
    yield "here"
    await asyncio.Event().wait()


async def test_drain_lets_running_turns_finish(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, None)
        queued = await desk.start("waiting", session_id=turn.session_id)
        await gate.reached()
        draining = asyncio.create_task(desk.runner.drain(BOUND))
        await settle()
        with pytest.raises(ShuttingDownError):
            await desk.start()
        gate.open()
        async with asyncio.timeout(BOUND):
            await draining
        assert (await desk.end(turn)).outcome == "completed"
        assert [record.id for record in await queued_turns(store)] == [queued.id]


async def test_drain_interrupts_turns_after_the_grace_period(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        async with asyncio.timeout(BOUND):
            await desk.runner.drain(0.02)
        *_, error, done = await desk.events(turn)
        assert isinstance(error, ErrorEvent)
        assert (error.code, error.retryable) == ("interrupted", True)
        assert done == DoneEvent("interrupted", turn.session_id, turn.id, reason="shutdown")
        assert len(desk.runner.worker.running) == 0


async def test_running_turn_of_a_lost_process_is_interrupted_at_the_next_start(backend: StoreBackend) -> None:
    store = await backend.open()
    orphan = await claimed(store, "lost")
    await write(store, orphan, TokenEvent("half"), UsageEvent(output_tokens=1))
    backend.crash()
    store = await backend.open()
    async with open_desk(store, echo) as desk:
        events = await desk.events(orphan)
        assert event_types(events) == ["session", "message", "token", "usage", "error", "done"]
        assert events[-2] == WORKER_LOST.error
        assert events[-1] == DoneEvent("interrupted", orphan.session_id, orphan.id, reason="worker_lost")
        state = await store.turn_state(orphan.id)
        assert state is not None
        assert (state.text, state.usage, state.outcome) == ("half", Usage(output_tokens=1), "interrupted")
        following = await desk.start(session_id=orphan.session_id)
        assert (await desk.end(following)).outcome == "completed"


async def test_queued_turns_of_a_lost_process_run_at_the_next_start(backend: StoreBackend) -> None:
    store = await backend.open()
    orphan = await claimed(store, "lost", message="first")
    waiting = [await started(store, message=message, session_id=orphan.session_id) for message in ("second", "third")]
    backend.crash()
    store = await backend.open()
    order: list[str] = []

    async def echo(turn: Turn) -> AgentEvents:
        order.append(turn.message)
        yield turn.message

    async with open_desk(store, echo) as desk:
        assert [(await desk.end(turn)).outcome for turn in waiting] == ["completed", "completed"]
    assert order == ["second", "third"]


async def test_queued_turn_of_an_unknown_agent_fails(backend: StoreBackend) -> None:
    store = await backend.open()
    waiting = await started(store)
    backend.crash()
    store = await backend.open()

    async def another(turn: Turn) -> AgentEvents:
        yield "x"

    async with open_desk(store, another) as desk:
        assert (await failure(desk, waiting)).code == "agent_not_found"


async def test_abandoned_turn_is_not_reported_as_settled(store: Store) -> None:
    async with open_desk(store, held) as desk:
        reported: list[str] = []
        desk.runner.on_ended.append(reported.append)
        desk.runner.on_settled.append(lambda record: reported.append(record.id))
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        await lose_worker(desk)
        assert (await store.find_turn("ann", turn.id)).phase == "running"
        assert reported == []


async def test_deleted_turn_does_not_keep_a_worker_from_the_other_turns_it_has_to_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = TurnRunner(store, {"echo": GeneratorAgent(echo)})
    orphan = await claimed(store, runner.worker.id)
    find = store.unfinished

    async def with_deleted(*, where: UnfinishedFilter) -> list[TurnRecord]:
        return [replace(orphan, id=new_id()), *await find(where=where)]

    monkeypatch.setattr(store, "unfinished", with_deleted)
    await runner.worker._find_orphans()
    assert (await Desk(store, runner).end(orphan)).outcome == "completed"
    await runner.close()


async def test_worker_takes_over_turns_when_a_lease_has_run_out(backend: StoreBackend) -> None:
    now = 1_000.0
    store = await backend.open(lease=10, clock=lambda: now)
    orphan = await claimed(store, "slow")
    async with open_desk(store, echo, lease=1) as desk:
        await settle()
        assert (await store.find_turn("ann", orphan.id)).phase == "running"
        now += 11
        done = await desk.end(orphan)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")


def test_worker_that_spreads_leaves_turns_to_idle_ones_and_claims_few_at_once() -> None:
    claims: list[tuple[float, int]] = []

    async def run() -> None:
        store, loop = MemoryStore(), asyncio.get_running_loop()
        claim_next, woken_at = store.claim_next, 0.0

        async def noted(worker: str, limit: int) -> list[TurnRecord]:
            claims.append((round(loop.time() - woken_at, 3), limit))
            return await claim_next(worker, limit)

        store.claim_next = noted
        runner = TurnRunner(store, {"silent": GeneratorAgent(silent)}, Limits(), spreads=True)
        await runner.open()
        await settle()
        claims.clear()
        for _ in range(8):
            woken_at = loop.time()
            turn = await Desk(store, runner).start()
            await wait_for_events(Desk(store, runner), turn, TokenEvent("here"))
        await runner.close()

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as loop:
        loop.run(run())
    # For each turn that it runs 5 ms, and at most 25.
    assert claims == [(min(count * 0.005, 0.025), count + 1) for count in range(8)]
