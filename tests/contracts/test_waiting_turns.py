"""What every store promises about turns that wait for a person."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.contracts.stores import Place
from tests.contracts.turns import append, claimed, ended, seized, start, started, write
from turnwire.core.budget import Limits
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Admission, Store, Suspension
from turnwire.core.errors import FencedError, SessionBusyError, TurnNotFoundError, TurnNotWaitingError
from turnwire.core.events import ApprovalRequestEvent, ApprovalResponseEvent, TokenEvent
from turnwire.core.ids import new_id
from turnwire.core.log import TurnLog
from turnwire.core.turns import TurnRecord


async def parked(store: Store, checkpoint: bytes = b"left", **details: Any) -> TurnRecord:
    record = await claimed(store, "asking", **details)
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    await log.suspend(Suspension(12_345, checkpoint))
    return await store.find_turn(record.principal, record.id)


async def test_a_parked_turn_waits_and_is_nobody_s(store: Store) -> None:
    record = await parked(store)
    assert (record.phase, record.worker, record.waiting_until, record.last_position) == ("waiting", None, 12_345, 3)
    assert await store.waiting() == [record]
    assert await store.queued() == []
    assert await store.checkpoint(record.id) == b"left"
    assert await store.turn_state(record.id) is None


async def test_no_lease_is_needed_for_a_turn_that_waits(place: Place) -> None:
    now = 0.0
    store = await place.open(lease=10, clock=lambda: now)
    record = await parked(store)
    now += 1_000
    assert await store.take_over("eager") == []
    assert await store.waiting() == [record]


async def test_what_is_asked_is_read_from_the_moment_that_the_turn_waits(place: Place, store: Store) -> None:
    record = await claimed(store)
    phases: list[str] = []

    def see(events: Sequence[LoggedEvent]) -> None:
        phases.append(place.now(store, lambda asked: asked.find_turn("ann", record.id)).phase)

    store.watch(record.id, see)
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    await log.suspend(Suspension(1, b""))
    assert phases == ["waiting"]


async def test_a_waiting_turn_outlives_a_crash(place: Place) -> None:
    store = await place.open()
    record = await parked(store, b"\x00\xff whatever")
    place.crash()
    store = await place.open()
    assert await store.waiting() == [record]
    assert await store.checkpoint(record.id) == b"\x00\xff whatever"
    await store.renew("alive")
    assert await store.take_over("alive") == []


async def test_who_holds_a_waiting_turn_is_its_only_writer_and_it_goes_on_waiting(place: Place) -> None:
    store = await place.open()
    record = await parked(store)
    first = await store.hold(record.id, "one")
    second = await store.hold(record.id, "two")
    assert (first.phase, second.phase, second.epoch) == ("waiting", "waiting", record.epoch + 2)
    with pytest.raises(FencedError):
        await append(store, record.id, first.epoch, 4, TokenEvent("late"))
    await append(store, record.id, second.epoch, 4, ApprovalResponseEvent("c1", True))
    place.crash()
    store = await place.open()
    (waiting,) = await store.waiting()
    assert (waiting.epoch, waiting.last_position) == (second.epoch, 4)


async def test_only_a_turn_that_waits_can_be_held(store: Store) -> None:
    for record in (await started(store), await claimed(store), await ended(store)):
        with pytest.raises(TurnNotWaitingError):
            await store.hold(record.id, "worker")
    with pytest.raises(TurnNotFoundError):
        await store.hold(new_id(), "worker")


async def test_a_waiting_turn_that_is_claimed_runs_and_can_end(store: Store) -> None:
    record = await parked(store)
    running = await store.claim(record.id, "worker")
    assert (running.phase, running.worker, running.started_at) == ("running", "worker", record.started_at)
    assert await store.waiting() == []
    assert await store.checkpoint(record.id) == b"left"
    await write(store, running, end="completed")
    # What the agent left may hold anything; nobody needs it any more.
    assert await store.checkpoint(record.id) == b""


async def test_a_turn_may_be_parked_again_with_another_checkpoint(store: Store) -> None:
    record = await store.claim((await parked(store)).id, "worker")
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c2", "send", {}))
    await log.suspend(Suspension(99, b"new"))
    assert await store.checkpoint(record.id) == b"new"
    assert [one.waiting_until for one in await store.waiting()] == [99]


async def test_a_fenced_writer_cannot_park_the_turn(store: Store) -> None:
    record = await claimed(store)
    await seized(store, record, "other")
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    with pytest.raises(FencedError):
        await log.suspend(Suspension(1, b""))
    assert await store.waiting() == []


async def test_a_waiting_turn_counts_as_unfinished(store: Store) -> None:
    record = await parked(store)
    with pytest.raises(SessionBusyError):
        await start(store, session_id=record.session_id, admission=Admission(on_busy="reject"))
