"""Group commit: one transaction for many turns, each checked for itself, and nothing lost with a connection."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest

from tests.contracts.stores import shared_databases
from tests.contracts.turns import (
    BOUND,
    append,
    claimed,
    done,
    ended,
    followed,
    positions,
    queued_turns,
    seized,
    start,
    started,
    texts,
    whole_log,
    write,
)
from tests.stores.postgres.conftest import Processes
from tests.stores.postgres.proxy import Fault, Proxy, proxied
from turnwire.core import metrics
from turnwire.core.contracts.stores import AppendRequest, JournalEntry, Refusal
from turnwire.core.errors import FencedError, PositionError, StoreError, StoreFullError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import StatusEvent, TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.core.people.budget import Limits
from turnwire.stores.postgres import PostgresStore, writer
from turnwire.stores.postgres.connections import DatabaseConnection


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxied(shared_databases().server.folder) as proxy:
        yield proxy


@pytest.fixture
async def distant(processes: Processes, proxy: Proxy) -> PostgresStore:
    """A store whose connections can be broken."""
    processes.url, direct = proxy.url(processes.database), processes.url
    try:
        return await processes.join()
    finally:
        processes.url = direct


async def test_appends_of_many_turns_at_once_are_one_transaction(processes: Processes, store: PostgresStore) -> None:
    records = [await claimed(store) for _ in range(20)]
    last = records.pop()
    await asyncio.gather(
        *(append(store, record.id, record.epoch, 3, TokenEvent("a"), TokenEvent("b")) for record in records),
        append(store, last.id, last.epoch, 3, done(last), end=True),
    )
    query = "SELECT count(*) || ' rows in ' || count(DISTINCT xmin::text) FROM turnwire.event WHERE first_position = 3"
    assert processes.fetchval(query) == "20 rows in 1"
    assert (await store.find_turn("ann", last.id)).phase == "ended"


async def test_commits_and_their_events_are_counted(store: PostgresStore) -> None:
    record = await claimed(store)
    commits, events = sum(metrics.COMMIT_SECONDS.counts), metrics.COMMIT_EVENTS.total
    await append(store, record.id, record.epoch, 3, TokenEvent("a"), TokenEvent("b"))
    await append(store, record.id, record.epoch, 5, TokenEvent("c"))
    await append(store, record.id, record.epoch, 6, TokenEvent("counted after the commit"))
    assert sum(metrics.COMMIT_SECONDS.counts) >= commits + 2
    assert metrics.COMMIT_EVENTS.total >= events + 3


async def test_refused_append_does_not_fail_the_group(store: PostgresStore) -> None:
    good, fenced, misplaced = [await claimed(store) for _ in range(3)]
    results = await asyncio.gather(
        append(store, good.id, good.epoch, 3, TokenEvent("good")),
        append(store, fenced.id, fenced.epoch - 1, 3, TokenEvent("late")),
        append(store, misplaced.id, misplaced.epoch, 4, TokenEvent("a gap before")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [list, FencedError, PositionError]
    assert [len(await whole_log(store, record.id)) for record in (good, fenced, misplaced)] == [3, 2, 2]


async def test_worker_taken_over_by_another_process_is_fenced(store: PostgresStore, other: PostgresStore) -> None:
    """The old owner writes before the new owner's first event, while the positions still agree."""
    zombie = await claimed(store, "zombie")
    await append(store, zombie.id, zombie.epoch, 3, TokenEvent("mine"))
    owner = await seized(other, zombie, "owner")
    with pytest.raises(FencedError):
        await append(store, zombie.id, zombie.epoch, 4, TokenEvent("late"))
    with pytest.raises(FencedError):
        await append(store, zombie.id, zombie.epoch, 4, done(zombie), end=True)
    await write(other, owner, TokenEvent("ours"), end="completed")
    assert texts(await whole_log(store, zombie.id)) == ["mine", "ours"]


async def test_released_turn_refuses_appends_until_it_is_claimed(store: PostgresStore) -> None:
    record = await claimed(store)
    log = TurnLog(store, record, Limits())
    log.append(StatusEvent("released"))
    await log.release()
    with pytest.raises(FencedError):
        await append(store, record.id, record.epoch, 4, TokenEvent("late"))
    with pytest.raises(FencedError):
        await append(store, record.id, record.epoch, 4, done(record), end=True)
    assert positions(await whole_log(store, record.id)) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_connection_lost_in_a_commit_loses_and_repeats_no_event(
    processes: Processes, proxy: Proxy, distant: PostgresStore, fault: Fault
) -> None:
    record = await claimed(distant)
    quiet = await claimed(distant)
    proxy.break_at(b"break here", fault)
    was_committed: list[bool] = []
    await asyncio.gather(
        append(
            distant,
            record.id,
            record.epoch,
            3,
            TokenEvent("break here"),
            on_commit=lambda: was_committed.append(len(processes.committed(record.id)) == 3),
        ),
        append(distant, quiet.id, quiet.epoch, 3, TokenEvent("beside it")),
    )
    assert proxy.happened.is_set()
    assert was_committed == [True]
    await append(distant, record.id, record.epoch, 4, TokenEvent("and on"))
    assert texts(await whole_log(distant, record.id)) == ["break here", "and on"]
    assert texts(await whole_log(distant, quiet.id)) == ["beside it"]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_connection_lost_in_a_commit_loses_and_repeats_no_entry(
    proxy: Proxy, distant: PostgresStore, fault: Fault
) -> None:
    record = await claimed(distant)
    log = TurnLog(distant, record, Limits())
    entries = [JournalEntry(kind="tool", key=key, state="started", position=2) for key in ("break here", "and on")]
    proxy.break_at(b"break here", fault)
    for entry in entries:
        log.record(entry)
        async with asyncio.timeout(BOUND):
            await log.flush()
    assert proxy.happened.is_set()
    assert await distant.journal(record.id) == entries


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_turn_ends_once_if_the_connection_is_lost_in_its_last_commit(
    proxy: Proxy, distant: PostgresStore, fault: Fault
) -> None:
    record = await claimed(distant)
    proxy.break_at(b'"type":"done"', fault)
    await append(distant, record.id, record.epoch, 3, done(record), end=True)
    assert proxy.happened.is_set()
    assert [logged.is_last for logged in await whole_log(distant, record.id)] == [False, False, True]


async def test_append_committed_after_the_check_is_not_refused(
    processes: Processes, proxy: Proxy, distant: PostgresStore
) -> None:
    """The server is still running the first statement when the connection is lost and the writer tries again."""
    record = await claimed(distant)
    blocker, watcher = await asyncpg.connect(processes.url), await asyncpg.connect(processes.url)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(BOUND):
        await blocker.execute("BEGIN")
        await blocker.execute("SELECT 1 FROM turnwire.head WHERE id = $1 FOR UPDATE", record.id)
        writing = asyncio.create_task(append(distant, record.id, record.epoch, 3, TokenEvent("held up")))
        for attempts in (1, 2):
            while await watcher.fetchval(blocked) < attempts:  # noqa: ASYNC110 - the server cannot notify of a lock
                await asyncio.sleep(0.005)
            if attempts == 1:
                proxy.close()
        await blocker.execute("ROLLBACK")
        await writing
    await asyncio.gather(blocker.close(), watcher.close())
    assert texts(await whole_log(distant, record.id)) == ["held up"]


@pytest.mark.parametrize("events", [[], [TokenEvent("ours")]], ids=["silent", "writing"])
async def test_worker_taken_over_while_the_database_is_away_is_fenced(
    proxy: Proxy, distant: PostgresStore, store: PostgresStore, events: list[TokenEvent]
) -> None:
    """Also if the new owner has written at the same position."""
    zombie = await claimed(distant, "zombie")
    await append(distant, zombie.id, zombie.epoch, 3, TokenEvent("mine"))
    proxy.break_at(b"break here", "lose the request")
    proxy.is_open = False
    writing = asyncio.create_task(append(distant, zombie.id, zombie.epoch, 4, TokenEvent("break here")))
    async with asyncio.timeout(BOUND):
        await proxy.happened.wait()
    owner = await seized(store, zombie, "owner")
    for position, event in enumerate(events, start=4):
        await append(store, owner.id, owner.epoch, position, event)
    proxy.is_open = True
    with pytest.raises(FencedError):
        await writing
    assert texts(await whole_log(store, zombie.id)) == ["mine", *[event.content for event in events]]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_turn_is_accepted_once_if_the_reply_is_lost(proxy: Proxy, distant: PostgresStore, fault: Fault) -> None:
    session, _ = await distant.ensure_session("ann", None, None)
    proxy.break_at(b"COMMIT", fault)
    accepted = await start(distant, session_id=session.id, key="k")
    record = accepted.record
    assert proxy.happened.is_set()
    assert accepted.created
    assert [turn.id for turn in await distant.list_turns("ann")] == [record.id]
    assert [turn.id for turn in await queued_turns(distant)] == [record.id]


async def test_claimed_turns_are_returned_if_the_reply_is_lost(proxy: Proxy, distant: PostgresStore) -> None:
    worker = new_id()
    await distant.renew(worker)
    turns = [(await started(distant)).id for _ in range(3)]
    proxy.break_at(worker.encode(), "lose the reply")
    assert [(record.id, record.epoch) for record in await distant.claim_next(worker, 2)] == [
        (turn_id, 1) for turn_id in turns[:2]
    ]
    assert proxy.happened.is_set()
    assert [record.id for record in await distant.claim_next(worker, 10)] == turns[2:]


async def test_append_that_cannot_be_stored_fails_its_own_turn_only(store: PostgresStore) -> None:
    good, poisoned = await claimed(store), await claimed(store)
    settled: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    last = log_event(done(poisoned), 3, poisoned.epoch)
    # There is no such outcome; what matters is that the database refuses it.
    unwritable = TurnState(outcome="\x00")  # type: ignore[arg-type]
    store.append(
        AppendRequest(poisoned.id, poisoned.epoch, [last], lambda _, error: settled.set_result(error), unwritable)
    )
    await append(store, good.id, good.epoch, 3, TokenEvent("good"))
    async with asyncio.timeout(BOUND):
        error = await settled
    assert isinstance(error, StoreError)
    assert texts(await whole_log(store, good.id)) == ["good"]
    assert positions(await whole_log(store, poisoned.id)) == [1, 2]
    await write(store, await store.claim(poisoned.id, "worker"), end="failed")


class Settlements:
    """Appends of one event each, and every call of their `settle`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Refusal | None]] = []
        self._called = asyncio.Event()

    def append(self, store: PostgresStore, record: TurnRecord, position: int = 3) -> None:
        def settle(count: int, error: Refusal | None) -> None:
            self.calls.append((record.id, error))
            self._called.set()

        event = log_event(TokenEvent("x"), position, record.epoch)
        store.append(AppendRequest(record.id, record.epoch, [event], settle))

    async def wait_for(self, *records: TurnRecord) -> None:
        async with asyncio.timeout(BOUND):
            while {record.id for record in records} - {turn_id for turn_id, _ in self.calls}:
                await self._called.wait()
                self._called.clear()


async def test_commit_that_fails_after_a_part_is_written_settles_each_append_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> dict[str, Refusal]:
        raise StoreError("permission denied")

    good, refused, settlements = await claimed(store), await claimed(store), Settlements()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "refusals", fail)
        settlements.append(store, good)
        settlements.append(store, refused, position=9)
        await settlements.wait_for(good, refused)
    await append(store, good.id, good.epoch, 4, TokenEvent("a later group"))
    assert len(settlements.calls) == 2
    assert dict(settlements.calls)[good.id] is None
    assert isinstance(dict(settlements.calls)[refused.id], StoreError)


async def test_connection_lost_while_a_refusal_is_explained_settles_each_append_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a first attempt whose fate was unknown, an append is found in the log, and then the connection is lost."""
    write_group, refusals = writer.write_group, writer.refusals
    failures = [ConnectionResetError("lost in the commit"), ConnectionResetError("lost in the refusal")]

    async def write_late(*arguments: Any, **options: Any) -> set[str]:
        if len(failures) == 2:
            raise failures.pop(0)
        await write_group(*arguments, **options)
        return set()  # As if the server had finished the first attempt before this one.

    async def explain(connection: DatabaseConnection, group: Sequence[AppendRequest]) -> dict[str, Refusal]:
        if failures:
            raise failures.pop()
        return await refusals(connection, group)

    good, refused, settlements = await claimed(store), await claimed(store), Settlements()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_group", write_late)
        patch.setattr(writer, "refusals", explain)
        settlements.append(store, good)
        settlements.append(store, refused, position=9)
        await settlements.wait_for(good, refused)
    await append(store, good.id, good.epoch, 4, TokenEvent("a later group"))
    assert len(settlements.calls) == 2
    assert dict(settlements.calls)[good.id] is None
    assert isinstance(dict(settlements.calls)[refused.id], PositionError)


async def test_commit_with_an_unknown_error_is_given_up(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> set[str]:
        raise TypeError("a bug")

    record = await claimed(store)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_group", fail)
        with pytest.raises(StoreError, match="TypeError"):
            await append(store, record.id, record.epoch, 3, TokenEvent("refused"))
    await append(store, record.id, record.epoch, 3, TokenEvent("written"))


async def test_full_disk_refuses_appends_and_retries_endings(processes: Processes, store: PostgresStore) -> None:
    earlier = await ended(store)
    record, ending = await claimed(store), await claimed(store)
    processes.fetchval(
        "CREATE FUNCTION turnwire.fill() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END $$"
    )
    trigger = "TRIGGER fill BEFORE INSERT ON turnwire.event FOR EACH ROW EXECUTE FUNCTION turnwire.fill()"
    processes.fetchval(f"CREATE {trigger}")
    try:
        with pytest.raises(StoreFullError):
            await append(store, record.id, record.epoch, 3, TokenEvent("no room"))
        with pytest.raises(StoreFullError):
            await started(store)
        ending_append = asyncio.create_task(append(store, ending.id, ending.epoch, 3, done(ending, "failed"), end=True))
        assert len(await whole_log(store, earlier.id)) == earlier.last_position
    finally:
        processes.fetchval("DROP FUNCTION turnwire.fill CASCADE")
    await ending_append
    await append(store, record.id, record.epoch, 3, TokenEvent("room again"))
    assert (await store.find_turn("ann", ending.id)).outcome == "failed"


async def test_server_restart_loses_no_event(store: PostgresStore, other: PostgresStore) -> None:
    record = await claimed(store)
    pieces = [f"piece {number} " for number in range(60)]
    log = TurnLog(store, record, Limits(max_uncommitted_events=5))
    await log.restore()
    reader = asyncio.create_task(followed(other, record.id))
    half = asyncio.Event()

    async def speak() -> None:
        for number, piece in enumerate(pieces):
            log.append(TokenEvent(piece))
            await log.wait_for_room()
            await asyncio.sleep(0.01)
            if number == len(pieces) // 3:
                half.set()
        await log.end("completed")

    speaking = asyncio.create_task(speak())
    await half.wait()
    await asyncio.to_thread(shared_databases().server.restart)
    async with asyncio.timeout(BOUND):
        await speaking
    seen: list[LoggedEvent] = await reader
    assert positions(seen) == list(range(1, len(pieces) + 4))
    assert texts(seen) == pieces
    assert seen == await whole_log(store, record.id, page=100)
