"""The contract of every store: tokens are counted when a turn ends, and never given back."""

import asyncio

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, claimed, ended, new_session_id, start, started, write
from turnwire.core.contracts.stores import Admission, AppendRequest, Budget, Refusal, Store
from turnwire.core.errors import BudgetSpentError
from turnwire.core.log.codec import LoggedEvent, log_event, now_ms
from turnwire.core.log.events import DoneEvent, Outcome, TokenEvent, UsageEvent
from turnwire.core.log.state import TurnFold
from turnwire.core.people.budget import DAY_MS, day_of

USAGE = UsageEvent(model="m", input_tokens=30, output_tokens=12, cached_input_tokens=20, reasoning_tokens=5)
SPENT = Admission(budget=Budget(100, 100, now_ms() + DAY_MS))


async def used(store: Store, principal: str = "ann", day: int | None = None) -> int:
    """Return the tokens of a day, or of the last two: a test may run over midnight."""
    days = [day_of(now_ms()) - 1, day_of(now_ms())] if day is None else [day]
    return sum([await store.tokens_used(principal, each) for each in days])


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "interrupted"])
async def test_tokens_are_counted_for_every_outcome(store: Store, outcome: Outcome) -> None:
    await ended(store, USAGE, TokenEvent("x"), USAGE, outcome=outcome)
    assert await used(store) == 84


async def test_tokens_add_up_per_principal(store: Store) -> None:
    for _ in range(3):
        await ended(store, USAGE)
    await ended(store, UsageEvent(input_tokens=1), principal="bob")
    assert (await used(store), await used(store, "bob"), await used(store, "eve")) == (126, 1, 0)


async def test_usage_without_numbers_counts_nothing(store: Store) -> None:
    await ended(store)
    await ended(store, UsageEvent(model="m"))
    assert await used(store) == 0
    await ended(store, UsageEvent(output_tokens=7))
    assert await used(store) == 7


async def test_tokens_are_counted_in_the_commit_that_ends_the_turn(store: Store) -> None:
    record = await claimed(store)
    await write(store, record, USAGE)
    assert await used(store) == 0
    await write(store, await store.claim(record.id, "worker"), end="completed")
    assert await used(store) == 42


async def end_at(store: Store, at: int) -> None:
    """End a turn at a chosen time."""
    record = await claimed(store)
    usage = log_event(USAGE, 3, record.epoch)
    done = log_event(DoneEvent("completed", record.session_id, record.id), 4, record.epoch)
    events = [LoggedEvent(each.position, each.epoch, at, each.body) for each in (usage, done)]
    fold = TurnFold()
    for event in events:
        fold.add(event)
    settled: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    store.append(
        AppendRequest(record.id, record.epoch, events, lambda count, error: settled.set_result(error), fold.state())
    )
    async with asyncio.timeout(BOUND):
        assert await settled is None


async def test_day_ends_at_midnight_utc(store: Store) -> None:
    midnight = 20_000 * DAY_MS
    await end_at(store, midnight - 1)
    await end_at(store, midnight)
    await end_at(store, midnight + DAY_MS - 1)
    assert [await used(store, day=day) for day in (19_998, 19_999, 20_000, 20_001)] == [0, 42, 84, 0]


async def test_deleted_session_keeps_its_tokens_counted(store: Store) -> None:
    record = await ended(store, USAGE)
    await store.delete_session("ann", record.session_id)
    assert await used(store) == 42


async def test_tokens_used_survive_a_crash_and_expiry(backend: StoreBackend) -> None:
    store = await backend.open()
    await ended(store, USAGE)
    await store.maintain(expire_before=2**45)
    backend.crash()
    assert await used(await backend.open()) == 42


async def test_impossible_token_numbers_are_clamped(store: Store) -> None:
    await ended(store, UsageEvent(input_tokens=-5, output_tokens=10**40))
    await ended(store, USAGE)
    assert await used(store) == 10**12 + 42


async def test_start_with_spent_budget_is_refused_and_writes_nothing(store: Store) -> None:
    session_id = await new_session_id(store)
    with pytest.raises(BudgetSpentError) as caught:
        await start(store, session_id=session_id, admission=SPENT)
    assert (caught.value.limit, caught.value.used, caught.value.left) == (100, 100, 0)
    # The time was taken when the tests were collected.
    assert 86_400 - 3_600 < caught.value.retry_after_seconds <= 86_400
    assert await store.list_turns("ann") == []


async def test_start_with_one_token_left_is_accepted(store: Store) -> None:
    await started(store, admission=Admission(budget=Budget(100, 99, now_ms() + DAY_MS)))


async def test_repeated_start_with_spent_budget_joins_the_turn(store: Store) -> None:
    first = await start(store, key="k")
    again = await start(store, key="k", admission=SPENT)
    assert (again.record.id, again.created) == (first.record.id, False)
