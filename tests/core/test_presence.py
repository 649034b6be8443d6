"""Turns that are cancelled when their last reader has left."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.contracts.turns import BOUND
from tests.core.desk import Gate, drain, held, open_actor_desk, open_desk, settle, start_held_turn
from tests.simulated_time import SimulatedTimeLoop
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import DoneEvent
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.run import presence
from turnwire.stores.memory import MemoryStore

READ = TurnRecord(id="t1", session_id="s1", principal="ann", agent="a", message="hi", disconnect_grace=0)


async def not_called(turn_id: str) -> None:
    raise AssertionError(turn_id)


class Continuing:
    """An agent whose turns another process continues, and which waits at a gate in each process."""

    on_crash = "resume"

    def __init__(self) -> None:
        self.gate = Gate()

    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        await self.gate.wait()
        yield "done"


async def hand_over(store: Store, agent: Continuing, grace: float | None) -> TurnRecord:
    """Start a turn with a reader, and stop its process."""
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start(disconnect_grace=grace)
        desk.runner.presence.join(turn)
        await agent.gate.reached()
        await drain(desk, 0.01)
    agent.gate = Gate()
    return turn


async def test_turn_without_a_grace_continues_without_readers(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        desk.runner.presence.join(turn)
        desk.runner.presence.depart(turn.id, by_client=True)
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


@pytest.mark.parametrize("grace", [0, 0.02])
async def test_turn_with_a_grace_is_cancelled_after_its_last_reader_left(store: Store, grace: float) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, grace)
        await gate.reached()
        desk.runner.presence.join(turn)
        desk.runner.presence.join(turn)
        desk.runner.presence.depart(turn.id, by_client=True)
        await settle()
        assert (await store.find_turn("ann", turn.id)).phase == "running"
        desk.runner.presence.depart(turn.id, by_client=True)
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="disconnected")


async def test_reader_that_returns_in_time_keeps_the_turn(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, 0)
        await gate.reached()
        desk.runner.presence.join(turn)
        desk.runner.presence.depart(turn.id, by_client=True)
        desk.runner.presence.join(turn)
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


async def test_reader_of_a_stream_closed_by_the_server_has_time_to_return(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, 0)
        await gate.reached()
        desk.runner.presence.join(turn)
        desk.runner.presence.depart(turn.id, by_client=False)
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


async def test_turn_without_any_reader_yet_continues(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, 0)
        await gate.reached()
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


async def test_readers_of_a_queued_turn_count(store: Store) -> None:
    async with open_desk(store, held) as desk:
        first, first_gate = await start_held_turn(desk, None)
        second, second_gate = await start_held_turn(desk, 0, session_id=first.session_id)
        desk.runner.presence.join(second)
        desk.runner.presence.join(second)
        first_gate.open()
        await second_gate.reached()
        desk.runner.presence.depart(second.id, by_client=True)
        await settle()
        second_gate.open()
        assert (await desk.end(second)).outcome == "completed"


async def test_queued_turn_is_cancelled_after_its_last_reader_left(store: Store) -> None:
    async with open_desk(store, held) as desk:
        first, first_gate = await start_held_turn(desk, None)
        second, second_gate = await start_held_turn(desk, 0, session_id=first.session_id)
        desk.runner.presence.join(second)
        desk.runner.presence.depart(second.id, by_client=True)
        assert (await desk.end(second)).reason == "disconnected"
        first_gate.open()
        assert (await desk.end(first)).outcome == "completed"
    assert not second_gate.was_reached


async def test_turn_that_another_process_continues_is_cancelled_if_no_reader_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_RETURN_SECONDS", 0.02)
    agent = Continuing()
    turn = await hand_over(store, agent, 0)
    async with open_actor_desk(store, agent) as desk:
        assert (await desk.end(turn)).reason == "disconnected"


class SharedAttendance:
    """The part of a shared store that knows which processes have readers; an answer waits while `gate` is set."""

    is_shared = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, bool]] = []
        self.gate: Gate | None = None

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        self.calls.append((turn_id, worker, present))
        if self.gate is not None:
            await self.gate.wait()
        return False


async def test_readers_are_recorded_again_for_another_worker_id() -> None:
    store, worker = SharedAttendance(), "w1"
    counted = presence.Presence(store, lambda: worker, leave=not_called)  # type: ignore[arg-type]
    counted.join(READ)
    counted.record_again()
    worker = "w2"
    counted.record_again()
    counted.record_again()
    await settle()
    counted.close()
    assert store.calls == [("t1", "w1", True), ("t1", "w2", True)]


async def test_reader_that_returns_while_the_store_is_asked_for_others_keeps_the_turn() -> None:
    store, left = SharedAttendance(), list[str]()

    async def leave(turn_id: str) -> None:
        left.append(turn_id)

    counted = presence.Presence(store, lambda: "w1", leave)  # type: ignore[arg-type]
    for returns in (True, False):
        counted.join(READ)
        await settle()
        store.gate = Gate()
        counted.depart("t1", by_client=True)
        await store.gate.reached()
        if returns:
            counted.join(READ)
        store.gate.open()
        await settle()
        assert left == ([] if returns else ["t1"])
        counted.forget("t1")
    counted.close()


async def test_readers_of_an_abandoned_turn_are_still_counted(store: Store) -> None:
    async with open_desk(store, held, lease=2 * BOUND) as desk:  # So that nobody takes the turn over.
        turn, gate = await start_held_turn(desk, 0)
        await gate.reached()
        desk.runner.presence.join(turn)
        desk.runner.worker.running[turn.id].abandon()
        desk.runner.presence.depart(turn.id, by_client=True)
        assert (await desk.end(turn)).reason == "disconnected"


def test_turn_that_another_process_continues_goes_on_if_a_reader_comes_back() -> None:
    async def run() -> None:
        store, agent = MemoryStore(), Continuing()
        turn = await hand_over(store, agent, 0)
        async with open_actor_desk(store, agent) as desk:
            await agent.gate.reached()
            desk.runner.presence.join(turn)
            await asyncio.sleep(60)  # In simulated time: longer than readers are expected.
            agent.gate.open()
            assert (await desk.end(turn)).outcome == "completed"

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as loop:
        loop.run(run())
