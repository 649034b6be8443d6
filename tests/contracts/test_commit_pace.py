"""The contract of every store: commits are paced, and pacing changes when a commit begins, never what it promises."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.contracts import checks
from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND, append, claimed, positions, whole_log
from turnwire.core.contracts.stores import AppendRequest, Store
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.turns import TurnRecord

# Much longer than any test: what waits for it is not seen within a test, however slow the machine is.
HOUR = 3600.0


async def claimed_before(backend: StoreBackend, interval: float) -> tuple[Store, TurnRecord]:
    """Return a store with this interval that has committed nothing yet, and a turn claimed before it was opened."""
    record = await claimed(await backend.open(commit_interval=0.0))
    backend.crash()
    return await backend.open(commit_interval=interval), record


async def committed_by_now(backend: StoreBackend, record: TurnRecord) -> list[LoggedEvent]:
    # What was due when a thread began has run when the loop hears of its end.
    await asyncio.to_thread(lambda: None)
    return backend.committed(record.id)


async def check_log_after_a_crash(backend: StoreBackend, record: TurnRecord) -> None:
    """A store with this pace would not close for an hour."""
    backend.crash()
    assert positions(await whole_log(await backend.open(), record.id)) == [1, 2, 3]


@pytest.mark.parametrize("interval", [0.0, 0.005, 0.05])
async def test_no_event_is_published_before_its_commit_at_any_pace(backend: StoreBackend, interval: float) -> None:
    await checks.check_no_event_is_published_before_its_commit(backend, await backend.open(commit_interval=interval))


async def test_first_event_after_a_quiet_moment_is_committed_at_once(backend: StoreBackend) -> None:
    store, record = await claimed_before(backend, HOUR)
    await append(store, record.id, record.epoch, 3, TokenEvent("at once"))
    await check_log_after_a_crash(backend, record)


async def test_event_within_the_interval_waits_and_is_not_published(backend: StoreBackend) -> None:
    store, record = await claimed_before(backend, HOUR)
    published: list[int] = []

    def wake(events: Sequence[LoggedEvent]) -> None:
        published.extend(positions(events))

    store.watch(record.id, wake)
    await append(store, record.id, record.epoch, 3, TokenEvent("at once"))
    second, third = [log_event(TokenEvent(str(position)), position, record.epoch) for position in (4, 5)]
    request = AppendRequest(record.id, record.epoch, [second], lambda count, error: pytest.fail("committed too early"))
    store.append(request)
    assert positions(await committed_by_now(backend, record)) == [1, 2, 3]
    request.events.append(third)
    assert positions(await committed_by_now(backend, record)) == [1, 2, 3]
    assert not request.is_taken, "the writer may still add events"
    assert published == [3]
    await check_log_after_a_crash(backend, record)


async def test_commits_of_a_busy_store_are_an_interval_apart(backend: StoreBackend) -> None:
    interval = 0.1
    store, record = await claimed_before(backend, interval)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await append(store, record.id, record.epoch, 3, TokenEvent("at once"))
    async with asyncio.timeout(BOUND):
        await append(store, record.id, record.epoch, 4, TokenEvent("an interval later"))
    # A lower bound only: a slow machine takes longer. A timer may fire a millisecond early.
    assert loop.time() - began >= interval - 0.002
    assert positions(backend.committed(record.id)) == [1, 2, 3, 4]
