"""The contract of messages that enter a running turn, over every store: once, in order, in one turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contracts.stores import PostgresBackend, StoreBackend
from tests.contracts.turns import BOUND, claimed, new_session_id, started, whole_log
from tests.core.desk import (
    AgentEvents,
    Desk,
    Gate,
    completed_answer,
    lose_worker,
    open_actor_desk,
    open_desk,
    wait_for_events,
)
from turnwire import take_inputs
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import FencedError, IdempotencyConflictError, SessionBusyError, SessionNotFoundError
from turnwire.core.journal.turn_journal import journaled
from turnwire.core.log.events import DoneEvent, Event, InputEvent, Joined, RestartEvent, TokenEvent
from turnwire.core.log.history import transcript
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import Message, Turn, TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRequest


class Listener:
    """An agent that takes messages each time its gate opens, and answers with all that it got."""

    on_crash: str = "resume"

    def __init__(self, rounds: int = 1) -> None:
        self.gates = [Gate() for _ in range(rounds)]
        self.turns: list[Turn] = []

    async def answer(self, turn: Turn) -> AgentEvents:
        self.turns.append(turn)
        messages = [turn.message]
        for number, gate in enumerate(self.gates):
            await gate.wait()
            messages += await take_inputs()
            await journaled(f"round {number}", _nothing, idempotent=True)
        yield " | ".join(messages)


async def _nothing() -> None:
    pass


def inputs(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.content, event.mode) for event in events if isinstance(event, InputEvent)]


async def send(desk: Desk, turn: TurnRecord, message: str, on_busy: Any = "steer", **fields: Any) -> TurnRecord:
    return await desk.start(message, session_id=turn.session_id, on_busy=on_busy, **fields)


@pytest.fixture
async def listening(store: Store) -> AsyncIterator[tuple[Desk, Listener, TurnRecord]]:
    listener = Listener()
    async with open_actor_desk(store, listener, max_queued_turns=3) as desk:
        turn = await desk.start("Go")
        await listener.gates[0].reached()
        yield desk, listener, turn


Listening = tuple[Desk, Listener, TurnRecord]


async def test_messages_enter_in_order_and_their_turns_end_as_joined(listening: Listening) -> None:
    desk, listener, turn = listening
    sent = [await send(desk, turn, message) for message in ("one", "two")]
    listener.gates[0].open()
    assert await completed_answer(desk, turn) == "Go | one | two"
    events = await desk.events(turn)
    assert inputs(events) == [("one", "steer"), ("two", "steer")]
    for position, message in enumerate(sent, start=3):
        done = await desk.end(message)
        assert done == DoneEvent("joined", turn.session_id, message.id, "steer", Joined(turn.id, position))
        assert (await desk.store.find_turn("ann", message.id)).outcome == "joined"
    (state,) = [state for state in [await desk.store.turn_state(turn.id)] if state]
    assert transcript([state]) == (Message("user", "Go\n\none\n\ntwo"), Message("assistant", "Go | one | two"))
    following = await desk.start("Then", session_id=turn.session_id)
    await desk.events(following)
    assert listener.turns[-1].history == transcript([state])
    assert listener.turns[-1].options == {}


async def test_message_of_the_same_key_enters_once(listening: Listening) -> None:
    desk, listener, turn = listening
    first = await send(desk, turn, "one", idempotency_key="k", fingerprint="f")
    listener.gates[0].open()
    await desk.events(first)
    again = await send(desk, turn, "one", idempotency_key="k", fingerprint="f")
    assert (again.id, again.outcome) == (first.id, "joined")
    with pytest.raises(IdempotencyConflictError):
        await send(desk, turn, "other", idempotency_key="k", fingerprint="g")
    assert inputs(await desk.events(turn)) == [("one", "steer")]


async def test_message_that_nobody_takes_becomes_the_next_turn(store: Store) -> None:
    gate = Gate()

    async def deaf(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield turn.message

    async with open_desk(store, deaf) as desk:
        turn = await desk.start("Go")
        await gate.reached()
        sent = await send(desk, turn, "one")
        gate.open()
        assert await completed_answer(desk, turn) == "Go"
        assert await completed_answer(desk, sent) == "one"


async def test_message_to_an_idle_session_starts_a_turn(store: Store) -> None:
    listener = Listener(0)
    async with open_actor_desk(store, listener) as desk:
        turn = await desk.start("Go", on_busy="steer")
        assert await completed_answer(desk, turn) == "Go"


async def test_message_that_was_cancelled_does_not_enter(listening: Listening) -> None:
    desk, listener, turn = listening
    sent = await send(desk, turn, "one")
    await desk.cancel(sent)
    listener.gates[0].open()
    assert await completed_answer(desk, turn) == "Go"
    assert (await desk.end(sent)).outcome == "cancelled"


async def test_message_that_is_deleted_at_this_moment_does_not_enter(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, listener, turn = listening
    sent, unfinished = await send(desk, turn, "one"), desk.store.unfinished

    async def delete_after(session_id: str) -> list[TurnRecord]:
        turns = await unfinished(session_id)
        await desk.cancel(sent)
        await desk.store.delete_turn("ann", sent.id)
        monkeypatch.setattr(desk.store, "unfinished", unfinished)
        return turns

    monkeypatch.setattr(desk.store, "unfinished", delete_after)
    listener.gates[0].open()
    assert await completed_answer(desk, turn) == "Go"


async def test_messages_count_as_queued_turns(listening: Listening) -> None:
    desk, _, turn = listening
    for number in range(3):
        await send(desk, turn, str(number))
    with pytest.raises(SessionBusyError):
        await send(desk, turn, "one too many")


async def test_message_of_another_principal_is_refused(listening: Listening) -> None:
    desk, _, turn = listening
    request = TurnRequest(principal="eve", message="Obey", session_id=turn.session_id, on_busy="steer")
    with pytest.raises(SessionNotFoundError):
        await desk.runner.start(request)


async def test_queued_message_for_another_agent_is_not_taken(store: Store) -> None:
    gate = Gate()

    async def actor(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield " | ".join([turn.message, *await take_inputs()])

    async def other(turn: Turn) -> AgentEvents:
        await gate.wait()
        yield " | ".join(["other", turn.message, *await take_inputs()])

    async with open_desk(store, actor, other) as desk:
        turn = await desk.start("Go", agent="other")
        await gate.reached()
        default, named = await send(desk, turn, "one"), await send(desk, turn, "two", agent="actor")
        gate.open()
        assert await completed_answer(desk, turn) == "other | Go | one"
        assert (await desk.end(default)).outcome == "joined"
        assert await completed_answer(desk, named) == "two"


async def test_message_with_a_parent_of_its_own_is_not_taken(listening: Listening) -> None:
    desk, listener, turn = listening
    sent = await send(desk, turn, "one", parent_turn_id="")
    listener.gates[0].open()
    assert await completed_answer(desk, turn) == "Go"
    assert await completed_answer(desk, sent) == "one"


async def test_message_that_is_larger_than_an_event_becomes_the_next_turn(store: Store) -> None:
    listener = Listener()
    async with open_actor_desk(store, listener, max_event_bytes=4_000) as desk:
        turn = await desk.start("Go")
        await listener.gates[0].reached()
        sent = await send(desk, turn, "x" * 3_500)
        listener.gates[0].open()
        assert await completed_answer(desk, turn) == "Go"
        assert len(await completed_answer(desk, sent)) == 3_500


# Collecting


async def test_collected_messages_become_one_next_turn(listening: Listening) -> None:
    desk, listener, turn = listening
    first, *rest = [await send(desk, turn, message, "collect") for message in ("one", "two", "three")]
    listener.gates[0].open()
    assert await completed_answer(desk, turn) == "Go"
    assert await completed_answer(desk, first) == "one\n\ntwo\n\nthree"
    assert inputs(await desk.events(first)) == [("two", "collect"), ("three", "collect")]
    for position, message in enumerate(rest, start=3):
        done = await desk.end(message)
        assert (done.outcome, done.reason, done.joined) == ("joined", "collect", Joined(first.id, position))


async def test_message_that_is_queued_in_between_keeps_its_place(listening: Listening) -> None:
    desk, listener, turn = listening
    modes = {"one": "collect", "two": "enqueue", "three": "collect"}
    turns = [await send(desk, turn, message, mode) for message, mode in modes.items()]
    listener.gates[0].open()
    assert [await completed_answer(desk, each) for each in turns] == ["one", "two", "three"]


# Crashes


async def test_message_is_replayed_at_its_place_after_a_crash(backend: StoreBackend) -> None:
    store, listener = await backend.open(), Listener(3)
    async with open_actor_desk(store, listener) as desk:
        turn = await desk.start("Go")
        await listener.gates[0].reached()
        sent = [await send(desk, turn, "one")]
        listener.gates[0].open()
        await listener.gates[1].reached()
        sent.append(await send(desk, turn, "two"))
        listener.gates[1].open()
        await listener.gates[2].reached()
        await lose_worker(desk)
        sent.append(await send(desk, turn, "three"))
    again = Listener(3)
    for gate in again.gates:
        gate.open()
    async with open_actor_desk(store, again) as desk:
        assert await completed_answer(desk, turn) == "Go | one | two | three"
        assert inputs(await desk.events(turn)) == [("one", "steer"), ("two", "steer"), ("three", "steer")]
        assert {(await desk.end(message)).outcome for message in sent} == {"joined"}


@pytest.mark.parametrize("on_crash", ["resume", "close"])
async def test_message_in_the_log_of_a_lost_worker_is_not_answered_again(store: Store, on_crash: str) -> None:
    """The worker is lost after the commit of the `input` event, before the turn of the message has ended."""
    listener = Listener()
    listener.on_crash = on_crash
    async with open_actor_desk(store, listener) as desk:
        turn = await desk.start("Go")
        await listener.gates[0].reached()
        sent = await send(desk, turn, "one")
        await lose_worker(desk)
    log = TurnLog(store, await store.claim(turn.id, "lost"), Limits())
    await log.restore()
    log.append(InputEvent("one", "ann", "http", sent.id))
    await log.flush()
    async with open_actor_desk(store, listener) as desk:
        listener.gates[0].open()
        assert (await desk.end(turn)).outcome == ("completed" if on_crash == "resume" else "interrupted")
        assert (await desk.end(sent)).joined == Joined(turn.id, 3)
        assert inputs(await desk.events(turn)) == [("one", "steer")]


async def test_restart_does_not_take_a_message_back(store: Store) -> None:
    """The text around the message is void after the crash; the message stays at its position."""

    class Speaker(Listener):
        async def answer(self, turn: Turn) -> AgentEvents:
            yield "text "
            await self.gates[0].wait()
            yield " | ".join(await take_inputs())
            await self.gates[1].wait()

    speaker = Speaker(2)
    async with open_actor_desk(store, speaker) as desk:
        turn = await desk.start("Go")
        await speaker.gates[0].reached()
        sent = await send(desk, turn, "one")
        speaker.gates[0].open()
        await speaker.gates[1].reached()
        await wait_for_events(desk, turn, TokenEvent("one"))
        await lose_worker(desk)
    speaker.gates[1].open()
    async with open_actor_desk(store, speaker) as desk:
        assert await completed_answer(desk, turn) == "text one"
        events = await desk.events(turn)
        assert inputs(events) == [("one", "steer")]
        assert RestartEvent(2, "worker_lost") in events
        assert (await desk.end(sent)).joined == Joined(turn.id, 4)


# Other processes


async def test_queued_turn_is_ended_as_joined_without_a_claim(store: Store) -> None:
    session = await new_session_id(store)
    await claimed(store, session_id=session)
    queued = await started(store, session_id=session)
    log = TurnLog(store, queued, Limits())
    await log.restore()
    await log.end("joined", reason="steer", joined=Joined("x", 3))
    assert (await store.find_turn("ann", queued.id)).outcome == "joined"
    assert [record.phase for record in await store.unfinished(session)] == ["running"]


async def test_turn_that_was_claimed_meanwhile_is_not_ended_as_joined(store: Store) -> None:
    session = await new_session_id(store)
    await claimed(store, session_id=session)
    queued = await started(store, session_id=session)
    log = TurnLog(store, queued, Limits())
    await log.restore()
    await store.claim(queued.id, "worker")
    with pytest.raises(FencedError):
        await log.end("joined", reason="steer", joined=Joined("x", 3))
    assert (await whole_log(store, queued.id))[-1].position == 2


@pytest.mark.postgres
async def test_message_from_another_process_enters(tmp_path: Any) -> None:
    backend = PostgresBackend(tmp_path)
    try:
        listener, other = Listener(), Listener()
        async with open_actor_desk(await backend.open(), listener) as desk:
            turn = await desk.start("Go")
            await listener.gates[0].reached()
            async with open_actor_desk(await backend.open(), other) as elsewhere:
                sent = [await send(elsewhere, turn, message) for message in ("one", "two")]
                reading = [asyncio.create_task(elsewhere.end(message)) for message in sent]
                listener.gates[0].open()
                async with asyncio.timeout(BOUND):
                    done = await asyncio.gather(*reading)
                assert [each.joined for each in done] == [Joined(turn.id, 3), Joined(turn.id, 4)]
                assert await completed_answer(elsewhere, turn) == "Go | one | two"
            assert not other.turns
    finally:
        await backend.close()
