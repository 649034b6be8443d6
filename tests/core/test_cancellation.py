"""Cancelled turns: durable, acknowledged, and stopped even if the agent does not cooperate."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing, suppress

import asyncpg
import pytest

from tests.contracts.stores import MemoryBackend, PostgresBackend, SqliteBackend, StoreBackend
from tests.contracts.turns import BOUND, claimed, write
from tests.core.desk import (
    AgentEvents,
    Desk,
    Gate,
    echo,
    event_types,
    failure,
    held,
    lose_worker,
    open_actor_desk,
    open_desk,
    settle,
    start_held_turn,
)
from turnwire.core.contracts.stores import Command, Store
from turnwire.core.errors import StoreFullError
from turnwire.core.log.events import DoneEvent, Usage, UsageEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import Stop, Turn
from turnwire.core.people.budget import Limits
from turnwire.core.run.execution import Execution
from turnwire.stores.sqlite.schema import DATABASE_NAME


async def test_cancelled_turn_keeps_its_partial_answer_and_usage(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        yield "The first half"
        yield UsageEvent(output_tokens=3)
        await gate.wait()
        yield " and the second"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        state = await store.turn_state(turn.id)
        assert event_types(await desk.events(turn)) == ["session", "message", "token", "usage", "done"]
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="requested")
    assert state is not None
    assert (state.text, state.usage, state.outcome) == ("The first half", Usage(output_tokens=3), "cancelled")


async def test_cancelled_agent_can_clean_up(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        try:
            yield "half"
            await gate.wait()
        finally:
            await asyncio.sleep(0)
            yield UsageEvent(output_tokens=9)

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_cancelled_queued_turn_never_runs(store: Store) -> None:
    gate = Gate()
    messages: list[str] = []

    async def agent(turn: Turn) -> AgentEvents:
        messages.append(turn.message)
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        first = await desk.start("first")
        second = await desk.start("second", session_id=first.session_id)
        third = await desk.start("third", session_id=first.session_id)
        await gate.reached()
        await desk.cancel(second)
        assert event_types(await desk.events(second)) == ["session", "message", "done"]
        assert (await desk.end(second)).reason == "requested"
        gate.open()
        assert (await desk.end(third)).outcome == "completed"
    assert messages == ["first", "third"]


async def test_cancel_of_an_ended_turn_changes_nothing(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        turn = await desk.start()
        before = await desk.events(turn)
        await desk.cancel(turn)
        assert await desk.events(turn) == before


async def test_concurrent_cancels_end_the_turn_once(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await asyncio.gather(desk.cancel(turn), desk.cancel(turn), desk.cancel(turn))
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_cancel_right_after_the_start_ends_the_turn(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        await asyncio.Event().wait()
        yield "never"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await desk.cancel(turn)
        assert event_types(await desk.events(turn)) == ["session", "message", "done"]


async def test_cancel_session_ends_all_its_turns(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        first = await desk.start()
        second = await desk.start(session_id=first.session_id)
        other = await desk.start()
        await gate.reached()
        async with asyncio.timeout(BOUND):
            await desk.runner.cancel_session(first.session_id)
        assert [(await desk.end(turn)).reason for turn in (first, second)] == ["session_deleted"] * 2
        await store.delete_session("ann", first.session_id)
        gate.open()
        assert (await desk.end(other)).outcome == "completed"


class Stubborn:
    """An agent that does not let itself be cancelled."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stubborn(self, turn: Turn) -> AgentEvents:
        yield "half"
        while True:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
            break
        yield " late"


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    agent = Stubborn()
    yield agent
    agent.gate.open()


async def test_agent_that_ignores_a_cancel_is_left_behind(
    store: Store, stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk(store, stubborn.stubborn, echo, cancel_patience=0.05) as desk:
        turn = await desk.start()
        await stubborn.gate.reached()
        following = await desk.start("next", session_id=turn.session_id, agent="echo")
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        assert (await desk.end(following)).outcome == "completed"
        before = await desk.events(turn)
        stubborn.gate.open()
        await settle()
        assert await desk.events(turn) == before
    assert "is left behind" in caplog.text


async def test_agent_that_continues_after_a_cancel_is_stopped_at_its_next_event(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        with suppress(asyncio.CancelledError):
            await gate.wait()
        while True:
            yield "more "
            await asyncio.sleep(0)

    async with open_desk(store, agent, cancel_patience=10 * BOUND) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert event_types(await desk.events(turn)) == ["session", "message", "token", "done"]


async def test_agent_that_ignores_its_timeout_is_left_behind(store: Store, stubborn: Stubborn) -> None:
    async with open_desk(store, stubborn.stubborn, turn_timeout=0.05, cancel_patience=0.05) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "turn_timeout"


async def test_agent_that_ignores_a_cancel_does_not_delay_the_shutdown(store: Store, stubborn: Stubborn) -> None:
    async with open_desk(store, stubborn.stubborn) as desk:
        turn = await desk.start()
        await stubborn.gate.reached()
        async with asyncio.timeout(BOUND / 2):
            await desk.runner.drain(0)
            await desk.runner.close()
        assert await desk.end(turn) == DoneEvent("interrupted", turn.session_id, turn.id, reason="shutdown")


async def test_cancelled_turn_leaves_no_task_and_no_reader(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with open_desk(store, held) as desk:
        for _ in range(3):
            turn, gate = await start_held_turn(desk, 0)
            await gate.reached()
            await desk.cancel(turn)
        await settle()
        assert len(desk.runner.worker.running) == 0
        assert not desk.runner.worker._tasks
        assert not desk.runner.presence._readers
        assert not await store.unfinished(turn.session_id)
    assert caplog.text == ""


# The command behind a cancel


class HungWorker:
    """Keeps a worker from stopping turns, as if the process died right after it wrote the command."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self._called = asyncio.Event()
        monkeypatch.setattr(desk.runner.worker, "end", self._end)

    async def _end(self, turn_id: str, stop: Stop) -> Execution:
        self._called.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def called(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._called.wait()


@pytest.mark.parametrize("on_crash", ["close", "resume"])
async def test_cancel_before_a_crash_takes_effect_after_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, on_crash: str
) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        await gate.wait()

    agent.on_crash = on_crash  # type: ignore[attr-defined]
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        worker = HungWorker(desk, monkeypatch)
        cancelling = asyncio.create_task(desk.cancel(turn))
        await worker.called()
        assert await store.commands(desk.runner.worker.id) == [Command(turn.id, "requested")]
        await lose_worker(desk)
        cancelling.cancel()
    async with open_actor_desk(store, agent) as desk:
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="requested")
        assert await store.commands(desk.runner.worker.id) == []


async def test_cancel_of_a_client_that_leaves_at_once_takes_effect(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commanding, write_command = asyncio.Event(), store.command

    async def command(command: Command) -> None:
        commanding.set()
        await write_command(command)

    monkeypatch.setattr(store, "command", command)
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        cancelling = asyncio.create_task(desk.cancel(turn))
        async with asyncio.timeout(BOUND):
            await commanding.wait()
        cancelling.cancel()
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_cancel_without_room_for_the_command_stops_a_local_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(command: Command) -> None:
        raise StoreFullError

    elsewhere = await claimed(store, "another worker")
    async with open_desk(store, held) as desk:
        turn, gate = await start_held_turn(desk, None)
        await gate.reached()
        monkeypatch.setattr(store, "command", refuse)
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        with pytest.raises(StoreFullError):
            await desk.cancel(elsewhere)


async def test_cancel_of_a_turn_elsewhere_returns_when_its_end_is_committed(store: Store) -> None:
    turn = await claimed(store, "another worker")
    async with open_desk(store, echo) as desk:
        commanded = asyncio.Event()
        unwatch = store.watch("another worker", lambda _: commanded.set())
        cancelling = asyncio.create_task(desk.cancel(turn))
        async with asyncio.timeout(BOUND):
            await commanded.wait()
        unwatch()
        assert not cancelling.done()
        await write(store, turn, end="cancelled")
        async with asyncio.timeout(BOUND):
            await cancelling


async def test_command_that_arrives_with_the_end_of_a_turn_leaves_no_row(backend: StoreBackend) -> None:
    store = await backend.open()
    for end_first in (True, False):
        turn = await claimed(store)
        log = TurnLog(store, turn, Limits())
        await log.restore()
        both = [log.end("completed"), store.command(Command(turn.id, "requested"))]
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(both if end_first else reversed(both)), return_exceptions=True)
        assert await store.turn_state(turn.id) is not None
    assert await command_rows(backend) == 0


async def command_rows(backend: StoreBackend) -> int:
    match backend:
        case MemoryBackend():
            return backend.connection.execute("SELECT count(*) FROM command").fetchone()[0]
        case SqliteBackend():
            with closing(sqlite3.connect(backend.folder / DATABASE_NAME)) as connection:
                return connection.execute("SELECT count(*) FROM command").fetchone()[0]
        case PostgresBackend():
            connection = await asyncpg.connect(backend.url)
            try:
                return await connection.fetchval("SELECT count(*) FROM turnwire.command")
            finally:
                await connection.close()
        case _:
            raise AssertionError(backend)
