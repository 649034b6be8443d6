"""The contract of every store: the outbox of turns that have ended or wait."""

from tests.contracts.stores import StoreBackend
from tests.contracts.test_waiting_turns import suspended
from tests.contracts.turns import claimed, ended, write
from turnwire.core.contracts.stores import Store
from turnwire.core.log.turns import TurnRecord

MINUTE = 60_000


async def due(store: Store, now: int = 1_000, until: int = MINUTE, limit: int = 10) -> list[tuple[TurnRecord, int]]:
    return [(notice.record, notice.attempts) for notice in await store.take_due(now, until, limit)]


async def test_notice_is_due_from_the_commit_that_ends_the_turn(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True)
    record = await claimed(store)
    assert await due(store) == []
    await write(store, record, end="cancelled")
    ((notified, attempts),) = await due(store)
    assert (notified.id, notified.outcome, notified.phase, attempts) == (record.id, "cancelled", "ended", 0)


async def test_taken_notice_is_hidden_until_its_time(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True)
    first, second = [(await ended(store)).id for _ in range(2)]
    assert [record.id for record, _ in await due(store, limit=1)] == [first]
    assert [record.id for record, _ in await due(store)] == [second]
    assert await due(store, now=MINUTE - 1) == []
    # The process that took them reported nothing, so they are due again without a failed attempt.
    assert [(record.id, attempts) for record, attempts in await due(store, now=MINUTE)] == [(first, 0), (second, 0)]


async def test_reschedule_counts_the_attempt_or_removes_the_notice(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True)
    for _ in range(2):
        await ended(store)
    first, second = await store.take_due(1_000, MINUTE, 10)
    await store.reschedule(first, 5_000)
    await store.reschedule(second, None)
    assert await due(store, now=4_999) == []
    ((notified, attempts),) = await due(store, now=5_000)
    assert (notified.id, attempts) == (first.record.id, 1)
    assert len(await due(store, now=2 * MINUTE)) == 1
    await store.reschedule(second, None)
    await store.reschedule(second, 1)


async def test_notices_survive_a_crash(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True)
    record = await ended(store)
    await due(store)
    backend.crash()
    # A store that adds no more notices still returns the old ones.
    store = await backend.open()
    assert [notified.id for notified, _ in await due(store, now=MINUTE)] == [record.id]


async def test_erased_turn_leaves_the_outbox(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True)
    turn, other = await ended(store), await ended(store)
    await store.delete_turn(turn.principal, turn.id)
    await store.delete_session(other.principal, other.session_id)
    assert await due(store) == []


async def test_store_without_keeps_outbox_has_no_notices(store: Store) -> None:
    await ended(store)
    assert await due(store) == []


async def test_waiting_turn_is_due_from_the_commit_that_suspends_it(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True, notes_waits=True)
    turn = await suspended(store)
    ((notified, attempts),) = await due(store)
    assert (notified.id, notified.phase, attempts) == (turn.id, "waiting", 0)


async def test_store_without_notes_waits_has_no_notice_of_a_wait(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True)
    await suspended(store)
    assert await due(store) == []


async def test_old_notice_that_is_rescheduled_leaves_the_newer_one(backend: StoreBackend) -> None:
    store = await backend.open(keeps_outbox=True, notes_waits=True)
    turn = await suspended(store)
    (old,) = await store.take_due(1_000, MINUTE, 10)
    await write(store, await store.hold(turn.id, "other"), end="cancelled")
    await store.reschedule(old, 2 * MINUTE)
    await store.reschedule(old, None)
    (newer,) = await store.take_due(1_000, MINUTE, 10)
    assert (newer.record.phase, newer.attempts) == ("ended", 0)
    await store.reschedule(newer, None)
    assert await due(store, now=2 * MINUTE) == []
