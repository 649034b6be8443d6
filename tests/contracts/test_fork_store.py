"""The contract of every store: a fork is accepted with its copied events and journal in one step."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, claimed, ended, whole_log, write
from tests.core.desk import Desk, completed_answer, open_actor_desk
from turnwire.core.contracts.stores import Admission, JournalEntry, NewTurn, Store, UnfinishedFilter
from turnwire.core.errors import (
    BadPositionError,
    EventsGoneError,
    IdempotencyConflictError,
    TooManyTurnsError,
    TurnNotFoundError,
)
from turnwire.core.ids import new_id
from turnwire.core.journal.turn_journal import journaled
from turnwire.core.log.codec import LoggedEvent, log_event, now_ms
from turnwire.core.log.events import SessionEvent, TokenEvent
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.run.fork import copied_events
from turnwire.core.run.runner import ForkRequest

ENTRY = JournalEntry(kind="model", key="a#0", state="finished", since=2, position=3, result=b'"tea"')


async def forked(store: Store, source: TurnRecord, *, waits: bool = False, **details: object) -> NewTurn:
    """Return a fork of the turn at position 3, as the runner makes it."""
    copied = copied_events(await whole_log(store, source.id), 3)
    record = TurnRecord(
        id=new_id(),
        session_id=source.session_id,
        principal=source.principal,
        agent="echo",
        message="hello",
        parent_turn_id="",
        phase="waiting" if waits else "queued",
        waiting_until=12_345,
        last_position=3,
        created_at=now_ms(),
    )
    first = log_event(SessionEvent(source.session_id, record.id, "echo", forked_from=source.id, forked_at=3), 1, 0)
    fields = {"opening": [first, *copied[1:]], "entries": [ENTRY], "forked_from": source.id}
    return NewTurn(record=record, **{**fields, **details})  # type: ignore[arg-type]


def bodies(events: list[LoggedEvent]) -> list[bytes]:
    return [logged.body for logged in events]


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_fork_has_the_shared_events_and_the_journal(backend: StoreBackend, store: Store, is_sealed: bool) -> None:
    source = await ended(store)
    if is_sealed:
        await store.maintain(expire_before=0)
    new = await forked(store, source)
    record = (await store.create_turn(new, Admission())).record
    assert bodies(await whole_log(store, record.id)) == bodies(list(new.opening))
    assert bodies(await whole_log(store, record.id))[1:] == bodies(await whole_log(store, source.id))[1:3]
    assert await store.journal(record.id) == [ENTRY]
    assert (record.phase, record.last_position, record.parent_turn_id) == ("queued", 3, "")
    assert bodies(backend.committed(record.id)) == bodies(list(new.opening))
    assert backend.recorded(record.id) == [ENTRY]
    # It is a turn like any other: claimed, written, ended and sealed.
    await store.renew("worker")
    (owner,) = await store.claim_next("worker", 5)
    assert owner.id == record.id
    await write(store, owner, TokenEvent("more"), end="completed")
    await store.maintain(expire_before=0)
    assert len(await whole_log(store, record.id)) == 5
    assert await store.journal(record.id) == [ENTRY]


async def test_fork_that_waits_for_a_person_is_not_claimed(backend: StoreBackend, store: Store) -> None:
    new = await forked(store, await ended(store), waits=True)
    record = (await store.create_turn(new, Admission())).record
    await store.renew("worker")
    assert await store.claim_next("worker", 5) == []
    assert [
        (turn.id, turn.waiting_until) for turn in await store.unfinished(where=UnfinishedFilter(phase="waiting"))
    ] == [(record.id, 12_345)]
    backend.crash()
    store = await backend.open()
    assert [turn.id for turn in await store.unfinished(where=UnfinishedFilter(phase="waiting"))] == [record.id]


async def test_fork_of_a_turn_that_was_erased_or_has_expired_meanwhile_is_refused(store: Store) -> None:
    source = await ended(store)
    erased, expired = await forked(store, source), await forked(store, source)
    await store.maintain(expire_before=now_ms() + 1_000)
    with pytest.raises(EventsGoneError):
        await store.create_turn(expired, Admission())
    await store.delete_turn("ann", source.id)
    with pytest.raises(TurnNotFoundError):
        await store.create_turn(erased, Admission())
    assert await store.list_turns("ann") == []
    assert await store.unfinished(where=UnfinishedFilter(principal="ann")) == []


async def test_fork_is_admitted_and_repeated_like_any_turn(store: Store) -> None:
    source = await ended(store)
    running = await claimed(store, session_id=source.session_id)
    with pytest.raises(TooManyTurnsError):
        await store.create_turn(await forked(store, source), Admission(max_unfinished=1))
    new = await forked(store, source, idempotency_key="k", fingerprint="f")
    first = await store.create_turn(new, Admission())
    again = replace(await forked(store, source), idempotency_key="k", fingerprint="f")
    assert (await store.create_turn(again, Admission())).record.id == first.record.id
    with pytest.raises(IdempotencyConflictError):
        await store.create_turn(replace(again, fingerprint="other"), Admission())
    # It waits for the turn before it in its session.
    assert await store.claim_next("worker", 5) == []
    await write(store, running, end="completed")
    assert [turn.id for turn in await store.claim_next("worker", 5)] == [first.record.id]


class Stepper:
    """A generator with two journaled steps, the second of which is not idempotent."""

    on_crash = "resume"

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def answer(self, turn: Turn):  # type: ignore[no-untyped-def]
        for name in ("first", "second"):
            yield f"{await journaled(name, lambda name=name: self.run(name))}. "
        yield turn.message

    async def run(self, name: str) -> str:
        self.ran.append(name)
        return name


async def fork(desk: Desk, source: TurnRecord, position: int) -> TurnRecord:
    async with asyncio.timeout(BOUND):
        return (await desk.runner.fork(ForkRequest(source=source, position=position))).record


async def test_fork_of_a_generator_takes_its_finished_steps_from_the_journal(store: Store) -> None:
    agent = Stepper()
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("tea")
        assert await completed_answer(desk, turn) == "first. second. tea"
        source = await store.find_turn("ann", turn.id)
        for position, expected in ((2, ["first", "second"]), (3, ["second"]), (4, []), (source.last_position, [])):
            agent.ran.clear()
            assert await completed_answer(desk, await fork(desk, source, position)) == "first. second. tea"
            assert agent.ran == expected, position


async def test_fork_at_a_position_outside_of_the_log_is_refused(store: Store) -> None:
    async with open_actor_desk(store, Stepper()) as desk:
        turn = await desk.start("tea")
        await desk.end(turn)
        source = await store.find_turn("ann", turn.id)
        for position in (0, -1, source.last_position + 1):
            with pytest.raises(BadPositionError):
                await fork(desk, source, position)
        assert [each.id for each in await store.list_turns("ann")] == [turn.id]
