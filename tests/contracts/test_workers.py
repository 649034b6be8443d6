"""The contract of every store: claims, leases and commands of many workers."""

import asyncio

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import (
    BOUND,
    append,
    claimed,
    done,
    ended,
    new_session_id,
    queued_turns,
    seized,
    start,
    started,
    texts,
    whole_log,
    write,
)
from turnwire.core.contracts.stores import RUNNABLE, Admission, Command, Store, UnfinishedFilter
from turnwire.core.errors import FencedError, LogRewoundError, TurnEndedError, TurnNotFoundError, TurnTakenError
from turnwire.core.log.events import StatusEvent, TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits

INTERRUPT = Admission(on_busy="interrupt")


async def released(store: Store, record: TurnRecord) -> None:
    log = TurnLog(store, record, Limits())
    await log.restore()
    log.append(StatusEvent("released"))
    await log.release()


class Wakes:
    """A wait, with a bound, for the wakes of a watched key."""

    def __init__(self, store: Store, key: str) -> None:
        self._woken = asyncio.Event()
        self.stop = store.watch(key, lambda _: self._woken.set())

    async def next(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._woken.wait()
        self._woken.clear()


@pytest.fixture
async def alive(store: Store) -> Store:
    for worker in ("one", "two"):
        await store.renew(worker, name=f"host:{worker}")
    return store


async def test_claim_of_a_live_worker_s_turn_is_refused(alive: Store) -> None:
    record = await claimed(alive, "one")
    with pytest.raises(TurnTakenError):
        await alive.claim(record.id, "two")
    assert (await alive.claim(record.id, "one")).epoch == record.epoch + 1
    with pytest.raises(TurnNotFoundError):
        await alive.claim("nobody", "two")


async def test_turn_of_a_retired_worker_is_taken_over_at_once(alive: Store) -> None:
    record = await claimed(alive, "one")
    assert await alive.take_over("two") == []
    await alive.retire("one")
    (taken,) = await alive.take_over("two")
    assert (taken.id, taken.worker, taken.epoch) == (record.id, "two", record.epoch + 1)
    with pytest.raises(FencedError):
        await append(alive, record.id, record.epoch, 3, TokenEvent("late"))


async def test_oldest_turns_are_claimed_first_and_each_by_one_worker(alive: Store) -> None:
    turns = [(await started(alive)).id for _ in range(5)]
    first = await alive.claim_next("one", 2)
    rest = await alive.claim_next("two", 10)
    assert [record.id for record in first] == turns[:2]
    assert sorted(record.id for record in rest) == sorted(turns[2:])
    assert {(record.worker, record.phase, record.epoch) for record in first} == {("one", "running", 1)}
    assert await alive.claim_next("one", 10) == []


async def test_concurrent_claims_never_claim_a_turn_twice(alive: Store) -> None:
    turns = {(await started(alive)).id for _ in range(12)}
    claims = await asyncio.gather(*(alive.claim_next(worker, 3) for worker in ("one", "two") * 4))
    ids = [record.id for claim in claims for record in claim]
    assert len(ids) == len(set(ids))
    assert set(ids) == turns


async def test_session_has_one_turn_at_a_time(alive: Store) -> None:
    session_id = await new_session_id(alive)
    first = await started(alive, session_id=session_id)
    second = await started(alive, session_id=session_id)
    third = await started(alive, session_id=session_id)
    assert [record.id for record in await alive.unfinished(session_id)] == [first.id, second.id, third.id]
    (running,) = await alive.claim_next("one", 10)
    assert running.id == first.id
    assert await alive.claim_next("two", 10) == []
    wakes = Wakes(alive, RUNNABLE)
    await write(alive, running, end="completed")
    await wakes.next()
    (running,) = await alive.claim_next("two", 10)
    assert running.id == second.id
    assert [record.id for record in await alive.unfinished(session_id)] == [second.id, third.id]


async def test_suspended_turn_blocks_later_turns_of_its_session(alive: Store) -> None:
    session_id = await new_session_id(alive)
    record = await claimed(alive, "one", session_id=session_id)
    await started(alive, session_id=session_id)
    log = TurnLog(alive, record, Limits())
    log.append(StatusEvent("may I?"))
    await log.suspend(2**50)
    assert await alive.claim_next("two", 10) == []
    assert [turn.id for turn in await alive.unfinished(where=UnfinishedFilter(phase="waiting"))] == [record.id]
    assert await alive.unfinished(where=UnfinishedFilter(phase="waiting", overdue_at=2**50 - 1)) == []
    assert [turn.id for turn in await alive.unfinished(where=UnfinishedFilter(phase="waiting", overdue_at=2**50))] == [
        record.id
    ]


async def test_turn_ended_out_of_order_keeps_the_order_of_the_others(alive: Store) -> None:
    session_id = await new_session_id(alive)
    first = await claimed(alive, "one", session_id=session_id)
    second = await started(alive, session_id=session_id)
    third = await started(alive, session_id=session_id)
    await write(alive, await alive.claim(second.id, "two"), end="cancelled")
    assert await alive.claim_next("two", 10) == []
    await write(alive, first, end="completed")
    assert [record.id for record in await alive.claim_next("two", 10)] == [third.id]


async def test_new_turn_wakes_watchers_of_runnable(alive: Store) -> None:
    wakes = Wakes(alive, RUNNABLE)
    await started(alive)
    await wakes.next()


async def test_released_turn_is_continued_by_the_next_worker(alive: Store) -> None:
    record = await claimed(alive, "one")
    wakes = Wakes(alive, RUNNABLE)
    await released(alive, record)
    await wakes.next()
    found = await alive.find_turn("ann", record.id)
    assert (found.phase, found.worker) == ("queued", None)
    assert [turn.id for turn in await queued_turns(alive)] == [record.id]
    (taken,) = await alive.claim_next("two", 10)
    assert (taken.id, taken.epoch, taken.last_position) == (record.id, record.epoch + 1, 3)
    assert taken.started_at == record.started_at
    with pytest.raises(FencedError):
        await append(alive, record.id, record.epoch, 4, TokenEvent("late"))
    await write(alive, taken, TokenEvent("here I am"), end="completed")
    assert texts(await whole_log(alive, record.id)) == ["here I am"]


async def test_held_turn_is_released_with_its_last_event(alive: Store) -> None:
    record = await claimed(alive, "one")
    log = TurnLog(alive, record, Limits())
    log.append(StatusEvent("may I?"))
    await log.suspend(2**50)
    await released(alive, await alive.hold(record.id, "two"))
    (taken,) = await alive.claim_next("two", 10)
    assert taken.id == record.id


async def test_workers_are_listed_with_their_running_turns(alive: Store) -> None:
    await claimed(alive, "one")
    await alive.renew("one", name="host:one")
    await alive.renew("two", name="host:two", draining=True)
    listed = {worker.id: worker for worker in await alive.workers()}
    assert {name: (worker.name, worker.running, worker.draining) for name, worker in listed.items()} == {
        "one": ("host:one", 1, False),
        "two": ("host:two", 0, True),
    }
    assert all(worker.lease_until > worker.started_at > 0 for worker in listed.values())
    await alive.retire("two")
    assert [worker.id for worker in await alive.workers()] == ["one"]


async def test_command_wakes_the_worker_of_the_turn(alive: Store) -> None:
    record = await claimed(alive, "one")
    wakes = Wakes(alive, "one")
    await alive.command(Command(record.id, "requested"))
    await wakes.next()
    await alive.command(Command(record.id, "repeated"))
    assert await alive.commands("one") == [Command(record.id, "requested")]
    assert await alive.commands("two") == []
    await write(alive, record, end="cancelled")
    assert await alive.commands("one") == []
    with pytest.raises(TurnEndedError):
        await alive.command(Command(record.id, "too late"))
    with pytest.raises(TurnNotFoundError):
        await alive.command(Command("nobody", "lost"))


async def test_command_moves_with_the_turn_to_its_next_worker(alive: Store) -> None:
    record = await claimed(alive, "one")
    await alive.command(Command(record.id, "requested"))
    await seized(alive, record, "two")
    assert await alive.commands("two") == [Command(record.id, "requested")]


async def test_command_to_a_queued_turn_is_returned_to_every_worker(alive: Store) -> None:
    record = await started(alive)
    await alive.command(Command(record.id, "requested"))
    assert await alive.commands("one") == await alive.commands("two") == [Command(record.id, "requested")]


async def test_interrupting_turn_commands_the_others_to_end(alive: Store) -> None:
    session_id = await new_session_id(alive)
    running = await claimed(alive, "one", session_id=session_id)
    queued = await started(alive, session_id=session_id)
    elsewhere = await claimed(alive, "one")
    wakes = Wakes(alive, "one")
    newest = (await start(alive, session_id=session_id, admission=INTERRUPT)).record
    await wakes.next()
    assert {command.turn_id for command in await alive.commands("one")} == {running.id, queued.id}
    assert {command.reason for command in await alive.commands("one")} == {"superseded"}
    await write(alive, running, end="cancelled")
    await write(alive, await alive.claim(queued.id, "two"), end="cancelled")
    assert [turn.id for turn in await alive.claim_next("two", 10)] == [newest.id]
    assert elsewhere.id not in {command.turn_id for command in await alive.commands("one")}


async def test_attend_counts_readers_of_live_workers(alive: Store) -> None:
    record = await started(alive, disconnect_grace=0)
    assert await alive.attend(record.id, "one", present=True)
    assert await alive.attend(record.id, "two", present=True)
    assert await alive.attend(record.id, "one", present=False)
    assert not await alive.attend(record.id, "two", present=False)
    assert await alive.attend(record.id, "one", present=True)
    await alive.retire("one")
    assert not await alive.attend(record.id, "two", present=False)


async def test_read_with_an_epoch_not_in_the_log_is_refused(store: Store) -> None:
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, TokenEvent("a"), TokenEvent("b"))
    assert texts(await store.read(record.id, 3, 10, record.epoch)) == ["b"]
    assert await store.read(record.id, 4, 10, record.epoch) == []
    with pytest.raises(LogRewoundError):
        await store.read(record.id, 4, 10, record.epoch + 1)
    with pytest.raises(LogRewoundError):
        await store.read(record.id, 5, 10, record.epoch)
    await append(store, record.id, record.epoch, 5, done(record), end=True)
    assert await store.read(record.id, 5, 10, record.epoch) == []
    await store.maintain(expire_before=0)
    assert await store.read(record.id, 5, 10, record.epoch) == []
    with pytest.raises(LogRewoundError):
        await store.read(record.id, 4, 10, record.epoch + 1)


async def test_commands_survive_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await started(store)
    await store.command(Command(record.id, "requested"))
    await ended(store)
    backend.crash()
    store = await backend.open()
    assert await store.commands("another") == [Command(record.id, "requested")]
    assert [turn.id for turn in await store.claim_next("another", 10)] == [record.id]
