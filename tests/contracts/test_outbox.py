"""What every store promises about ended turns that somebody outside is yet to be told of."""

from tests.contracts.stores import Place
from tests.contracts.turns import claimed, ended, write
from turnwire.core.contracts import Store
from turnwire.core.turns import TurnRecord

MINUTE = 60_000


async def due(store: Store, now: int = 1_000, until: int = MINUTE, limit: int = 10) -> list[tuple[TurnRecord, int]]:
    return [(notice.record, notice.attempts) for notice in await store.take_due(now, until, limit)]


async def test_a_turn_is_to_be_told_of_from_the_step_that_ends_it(place: Place) -> None:
    store = await place.open(keeps_outbox=True)
    record = await claimed(store)
    assert await due(store) == []
    await write(store, record, end="cancelled")
    ((told, attempts),) = await due(store)
    assert (told.id, told.outcome, told.phase, attempts) == (record.id, "cancelled", "ended", 0)


async def test_who_takes_a_notice_has_it_alone_until_its_time_is_over(place: Place) -> None:
    store = await place.open(keeps_outbox=True)
    first, second = [(await ended(store)).id for _ in range(2)]
    assert [record.id for record, _ in await due(store, limit=1)] == [first]
    assert [record.id for record, _ in await due(store)] == [second]
    assert await due(store, now=MINUTE - 1) == []
    # Whoever had them said nothing: they are for the next one, and nothing has failed that anybody knows of.
    assert [(record.id, attempts) for record, attempts in await due(store, now=MINUTE)] == [(first, 0), (second, 0)]


async def test_a_notice_that_is_put_off_counts_the_attempt_and_one_that_is_dismissed_is_gone(place: Place) -> None:
    store = await place.open(keeps_outbox=True)
    first, second = [(await ended(store)).id for _ in range(2)]
    await due(store)
    await store.put_off(first, 5_000)
    await store.dismiss(second)
    assert await due(store, now=4_999) == []
    ((told, attempts),) = await due(store, now=5_000)
    assert (told.id, attempts) == (first, 1)
    assert len(await due(store, now=2 * MINUTE)) == 1
    await store.dismiss("no-such-turn")
    await store.put_off("no-such-turn", 1)


async def test_what_is_yet_to_be_told_outlives_a_crash(place: Place) -> None:
    store = await place.open(keeps_outbox=True)
    record = await ended(store)
    await due(store)
    place.crash()
    # Also one that does not add to it any more tells what is in it.
    store = await place.open()
    assert [told.id for told, _ in await due(store, now=MINUTE)] == [record.id]


async def test_a_turn_that_was_erased_is_nobody_s_news(place: Place) -> None:
    store = await place.open(keeps_outbox=True)
    one, other = await ended(store), await ended(store)
    await store.delete_turn(one.principal, one.id)
    await store.delete_session(other.principal, other.session_id)
    assert await due(store) == []


async def test_a_store_that_was_not_told_to_keeps_no_outbox(store: Store) -> None:
    await ended(store)
    assert await due(store) == []
