"""The contract of every store: turns that wait for a person."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import append, claimed, ended, queued_turns, seized, start, started, write
from turnwire.core.contracts.stores import Admission, Store, UnfinishedFilter
from turnwire.core.errors import FencedError, SessionBusyError, TurnNotFoundError, TurnNotWaitingError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import ApprovalRequestEvent, ApprovalResponseEvent, TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits


async def suspended(store: Store, **details: Any) -> TurnRecord:
    record = await claimed(store, "asking", **details)
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    await log.suspend(12_345)
    return await store.find_turn(record.principal, record.id)


async def test_suspended_turn_waits_without_a_worker(store: Store) -> None:
    record = await suspended(store)
    assert (record.phase, record.worker, record.waiting_until, record.last_position) == ("waiting", None, 12_345, 3)
    assert await store.unfinished(where=UnfinishedFilter(phase="waiting")) == [record]
    assert await queued_turns(store) == []
    assert await store.turn_state(record.id) is None


async def test_waiting_turn_needs_no_lease(backend: StoreBackend) -> None:
    now = 0.0
    store = await backend.open(lease=10, clock=lambda: now)
    record = await suspended(store)
    now += 1_000
    assert await store.take_over("eager") == []
    assert await store.unfinished(where=UnfinishedFilter(phase="waiting")) == [record]


async def test_turn_is_waiting_when_its_request_is_published(backend: StoreBackend, store: Store) -> None:
    record = await claimed(store)
    phases: list[str] = []

    def note_phase(events: Sequence[LoggedEvent]) -> None:
        phases.append(backend.call_now(store, lambda reader: reader.find_turn("ann", record.id)).phase)

    store.watch(record.id, note_phase)
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    await log.suspend(1)
    assert phases == ["waiting"]


async def test_waiting_turn_survives_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await suspended(store)
    backend.crash()
    store = await backend.open()
    assert await store.unfinished(where=UnfinishedFilter(phase="waiting")) == [record]
    await store.renew("alive")
    assert await store.take_over("alive") == []


async def test_hold_makes_the_only_writer_and_the_turn_keeps_waiting(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await suspended(store)
    first = await store.hold(record.id, "one")
    second = await store.hold(record.id, "two")
    assert (first.phase, second.phase, second.epoch) == ("waiting", "waiting", record.epoch + 2)
    with pytest.raises(FencedError):
        await append(store, record.id, first.epoch, 4, TokenEvent("late"))
    await append(store, record.id, second.epoch, 4, ApprovalResponseEvent("c1", True))
    backend.crash()
    store = await backend.open()
    (waiting,) = await store.unfinished(where=UnfinishedFilter(phase="waiting"))
    assert (waiting.epoch, waiting.last_position) == (second.epoch, 4)


async def test_hold_of_a_turn_that_does_not_wait_is_refused(store: Store) -> None:
    for record in (await started(store), await claimed(store), await ended(store)):
        with pytest.raises(TurnNotWaitingError):
            await store.hold(record.id, "worker")
    with pytest.raises(TurnNotFoundError):
        await store.hold(new_id(), "worker")


async def test_waiting_turn_that_is_claimed_runs_and_can_end(store: Store) -> None:
    record = await suspended(store)
    running = await store.claim(record.id, "worker")
    assert (running.phase, running.worker, running.started_at) == ("running", "worker", record.started_at)
    assert await store.unfinished(where=UnfinishedFilter(phase="waiting")) == []
    await write(store, running, end="completed")
    assert (await store.find_turn(record.principal, record.id)).outcome == "completed"


async def test_turn_suspended_again_waits_until_the_new_time(store: Store) -> None:
    record = await store.claim((await suspended(store)).id, "worker")
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c2", "send", {}))
    await log.suspend(99)
    assert [turn.waiting_until for turn in await store.unfinished(where=UnfinishedFilter(phase="waiting"))] == [99]


async def test_fenced_writer_cannot_suspend_the_turn(store: Store) -> None:
    record = await claimed(store)
    await seized(store, record, "other")
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    with pytest.raises(FencedError):
        await log.suspend(1)
    assert await store.unfinished(where=UnfinishedFilter(phase="waiting")) == []


async def test_waiting_turn_counts_as_unfinished(store: Store) -> None:
    record = await suspended(store)
    with pytest.raises(SessionBusyError):
        await start(store, session_id=record.session_id, admission=Admission(on_busy="reject"))
