"""The runner: starting turns, the order of a session's turns, and their history."""

import asyncio
from unittest.mock import ANY

import pytest

from tests.contracts.turns import BOUND, types, whole_log
from tests.core.desk import AgentEvents, Gate, echo, open_desk
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import AgentNotFoundError, SessionBusyError
from turnwire.core.log.events import (
    ResponseEvent,
)
from turnwire.core.log.turns import Message, Turn
from turnwire.core.run.runner import TurnRequest

# Starting


async def test_start_without_a_session_creates_one(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        turn = (await desk.runner.start(TurnRequest(principal="ann", message="a new subject"))).record
        await desk.end(turn)
        session = await store.find_session("ann", turn.session_id)
    assert (session.title, session.turn_count) == ("a new subject", 1)


async def test_start_with_an_unknown_agent_writes_nothing(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        with pytest.raises(AgentNotFoundError):
            await desk.start(agent="nobody")
    assert await store.list_turns("ann") == []


async def test_turn_runs_although_its_client_left_during_the_start(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        session_id = await desk.session()
        starting = asyncio.create_task(desk.start(session_id=session_id))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting], timeout=BOUND)
        await desk.end(await desk.start("another"))
        for turn in await store.list_turns("ann", session_id=session_id):
            assert (await desk.end(turn)).outcome == "completed"


# The order of turns


async def test_turns_of_a_session_run_in_order(store: Store) -> None:
    running: list[str] = []
    order: list[str] = []

    async def agent(turn: Turn) -> AgentEvents:
        assert running == []
        running.append(turn.message)
        yield "half"
        await asyncio.sleep(0)
        running.remove(turn.message)
        order.append(turn.message)
        yield "whole"

    async with open_desk(store, agent) as desk:
        session_id = await desk.session()
        turns = [await desk.start(str(number), session_id=session_id) for number in range(5)]
        assert [(await desk.end(turn)).outcome for turn in turns] == ["completed"] * 5
    assert order == ["0", "1", "2", "3", "4"]


async def test_turns_of_different_sessions_run_concurrently(store: Store) -> None:
    together = asyncio.Barrier(3)

    async def agent(turn: Turn) -> AgentEvents:
        async with asyncio.timeout(BOUND):
            await together.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        turns = [await desk.start() for _ in range(3)]
        assert [(await desk.end(turn)).outcome for turn in turns] == ["completed"] * 3


async def test_queued_turn_can_be_read(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        first = await desk.start("first")
        second = await desk.start("second", session_id=first.session_id)
        await gate.reached()
        assert types(await whole_log(store, second.id)) == ["session", "message"]
        assert (await store.find_turn("ann", second.id)).phase == "queued"
        gate.open()
        await desk.end(second)


async def test_busy_session_rejects_turns_on_request_or_when_full(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent, max_queued_turns=1) as desk:
        first = await desk.start()
        with pytest.raises(SessionBusyError):
            await desk.start(session_id=first.session_id, on_busy="reject")
        second = await desk.start(session_id=first.session_id)
        with pytest.raises(SessionBusyError):
            await desk.start(session_id=first.session_id)
        gate.open()
        assert (await desk.end(second)).outcome == "completed"
        assert (await desk.end(await desk.start(session_id=first.session_id, on_busy="reject"))).outcome == "completed"


async def test_interrupting_turn_supersedes_all_unfinished_turns(store: Store) -> None:
    gate = Gate()
    ends_seen: list[str | None] = []

    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        await gate.wait()

    async def newest(turn: Turn) -> AgentEvents:
        ends_seen.append((await store.find_turn("ann", first.id)).outcome)
        yield "the newest"

    async with open_desk(store, agent, newest) as desk:
        first = await desk.start("first")
        await gate.reached()
        second = await desk.start("second", session_id=first.session_id)
        last = await desk.start("last", session_id=first.session_id, on_busy="interrupt", agent="newest")
        assert (await desk.end(last)).outcome == "completed"
        for turn in (first, second):
            done = await desk.end(turn)
            assert (done.outcome, done.reason) == ("cancelled", "superseded")
    assert ends_seen == ["cancelled"], "the new turn must not run before the old one's done"


async def test_repeated_interrupting_request_does_not_interrupt_itself(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        session_id = await desk.session()
        first = await desk.start(session_id=session_id, on_busy="interrupt", idempotency_key="k")
        await gate.reached()
        again = await desk.start(session_id=session_id, on_busy="interrupt", idempotency_key="k")
        assert again.id == first.id
        gate.open()
        assert (await desk.end(first)).outcome == "completed"


# History


async def test_agent_gets_the_history_of_the_session(store: Store) -> None:
    turns: list[Turn] = []

    async def agent(turn: Turn) -> AgentEvents:
        turns.append(turn)
        yield f"answer to {turn.message}"

    async with open_desk(store, agent, history_turns=2) as desk:
        session_id = await desk.session()
        for message in ("one", "two", "three"):
            await desk.end(await desk.start(message, session_id=session_id, options={"n": message}))
    assert [turn.message for turn in turns] == ["one", "two", "three"]
    assert turns[0].history == ()
    assert turns[1].history == (Message("user", "one"), Message("assistant", "answer to one"))
    assert (turns[2].principal, turns[2].session_id, turns[2].options) == ("ann", session_id, {"n": "three"})
    assert len(turns[2].history) == 4


async def test_turn_with_a_parent_continues_that_turn(store: Store) -> None:
    async def recite(turn: Turn) -> AgentEvents:
        yield " ".join(message.content for message in turn.history) or "nothing"

    async with open_desk(store, recite) as desk:
        session_id = await desk.session()
        first = await desk.start("one", session_id=session_id)
        await desk.end(first)
        await desk.end(await desk.start("two", session_id=session_id))
        again = await desk.start("three", session_id=session_id, parent_turn_id=first.id)
        *_, response, _ = await desk.events(again)
        assert response == ResponseEvent("one nothing", timings=ANY)


async def test_imported_history_comes_before_the_session(store: Store) -> None:
    async def recite(turn: Turn) -> AgentEvents:
        yield " ".join(f"{message.role}:{message.content}" for message in turn.history)

    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    async with open_desk(store, recite) as desk:
        *_, response, _ = await desk.events(await desk.start("go on", options={"history": history}))
        assert response == ResponseEvent("user:hi assistant:hello", timings=ANY)


async def test_imported_history_reaches_later_turns(store: Store) -> None:
    async def recite(turn: Turn) -> AgentEvents:
        yield " ".join(message.content for message in turn.history)

    async with open_desk(store, recite) as desk:
        session_id = await desk.session()
        history = [{"role": "user", "content": "hi"}]
        await desk.end(await desk.start("one", session_id=session_id, options={"history": history}))
        *_, response, _ = await desk.events(await desk.start("two", session_id=session_id))
        assert response == ResponseEvent("hi one hi", timings=ANY)
