"""The PostgreSQL store: opening, migrating, claiming across processes, partitions and sealed logs."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.contracts.stores import shared_databases
from tests.contracts.turns import BOUND, append, claimed, ended, start, started, types, whole_log, write
from tests.core.desk import open_desk, wait_until_suspended
from tests.postgres_server import execute, run_aside
from tests.stores.postgres.conftest import Processes
from turnwire.assembly import build_store
from turnwire.core.contracts.stores import Admission
from turnwire.core.errors import SessionBusyError, StoreAwayError, StoreUnusableError, TurnTakenError
from turnwire.core.journal.waits import approval
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import ApprovalRequestEvent, TokenEvent
from turnwire.core.log.turns import Turn
from turnwire.core.people.budget import DAY_MS, day_of
from turnwire.core.run.execution import Execution
from turnwire.core.run.presence import Presence
from turnwire.settings import Settings
from turnwire.stores.postgres import PostgresStore, claims, schema
from turnwire.stores.postgres.schema import drop_partitions, partition_name

PARTITIONS = "SELECT array_agg(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'turnwire.event'::regclass"


# Opening


async def test_stores_opened_at_once_migrate_once() -> None:
    server = shared_databases().server
    url = server.url(await asyncio.to_thread(server.new_database))
    stores = [PostgresStore(url) for _ in range(5)]
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(store.open() for store in stores))
    record = await ended(stores[0])
    assert types(await whole_log(stores[1], record.id))[-1] == "done"
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/logs", "logs at 127.0.0.1:1: it cannot be reached"),
        ("postgresql://postgres:s3cret@/nowhere?host={folder}", 'database "nowhere" does not exist; make it'),
        ("postgresql://nobody:s3cret@/postgres?host={folder}", 'role "nobody" does not exist; check the user'),
    ],
)
async def test_unusable_database_error_says_why_without_the_password(
    url: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_OPEN_SECONDS", 0.1)
    store = PostgresStore(url.format(folder=shared_databases().server.folder))
    with pytest.raises(StoreUnusableError) as refused:
        await store.open()
    assert why in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_store_is_built_from_the_settings(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, database_url="postgresql://ann:s3cret@host/db")  # type: ignore[arg-type]
    assert isinstance(build_store("postgres", settings), PostgresStore)
    assert "s3cret" not in repr(settings)
    with pytest.raises(StoreUnusableError, match="database_url"):
        build_store("postgres", Settings(data=tmp_path))


async def test_closed_store_can_be_opened_again(store: PostgresStore) -> None:
    await store.close()
    await store.open()
    assert not store.connections.is_closed
    assert (await ended(store)).outcome == "completed"


async def test_call_while_the_database_is_away_fails_after_the_retry_time(
    processes: Processes, store: PostgresStore
) -> None:
    await ended(store)
    store.connections._url = "postgresql://postgres@127.0.0.1:1/gone"
    await asyncio.to_thread(run_aside, execute(processes.url, KILL_OTHERS))
    reading = asyncio.create_task(store.read("nothing", 0, 1))
    with pytest.raises(StoreAwayError):
        await store.connections.run(lambda connection, _: connection.fetchval("SELECT 1"), retry_for=0.2)
    assert not reading.done()
    reading.cancel()
    store.connections._url = processes.url
    assert len(await store.list_turns("ann")) == 1


KILL_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


# Many processes


async def test_turn_is_claimed_by_one_of_many_processes(processes: Processes, store: PostgresStore) -> None:
    others = [store, *[await processes.join() for _ in range(2)]]
    turns = {(await started(store)).id for _ in range(24)}
    for number, other in enumerate(others):
        await other.renew(f"worker {number}")
    claims = await asyncio.gather(
        *(other.claim_next(f"worker {number}", 3) for _ in range(4) for number, other in enumerate(others))
    )
    ids = [record.id for claim in claims for record in claim]
    assert (len(ids), set(ids)) == (24, turns)
    record = await started(store)
    results = await asyncio.gather(
        *(other.claim(record.id, f"worker {number}") for number, other in enumerate(others)), return_exceptions=True
    )
    assert [type(result) for result in results].count(TurnTakenError) == 2


async def test_turns_of_a_dead_worker_are_taken_over_once_by_many_processes(
    processes: Processes, store: PostgresStore, other: PostgresStore
) -> None:
    turns = {(await claimed(store, "dead")).id for _ in range(12)}
    await store.renew("one")
    await other.renew("two")
    assert await other.take_over("two") == []
    await store.retire("dead")
    taken = [
        *await asyncio.gather(*(process.take_over(name) for process, name in ((store, "one"), (other, "two")) * 2))
    ]
    ids = [record.id for some in taken for record in some]
    assert (len(ids), set(ids)) == (12, turns)


@pytest.mark.parametrize("taking", ["claim_next", "take_over"])
async def test_turn_that_another_transaction_is_claiming_is_skipped(
    processes: Processes, store: PostgresStore, taking: str
) -> None:
    await store.renew("two")
    record = await (started(store) if taking == "claim_next" else claimed(store, "dead"))
    await store.retire("dead")
    other = await asyncpg.connect(processes.url)
    query = {"claim_next": claims.CLAIM_NEXT, "take_over": claims.TAKE_OVER}[taking]
    async with asyncio.timeout(BOUND / 2):
        async with other.transaction():
            assert [row["id"] for row in await other.fetch(query, None, "one", "an attempt", 10)] == [record.id]
            assert await (store.claim_next("two", 10) if taking == "claim_next" else store.take_over("two")) == []
        await other.close()
    assert (await store.find_turn("ann", record.id)).worker == "one"


async def test_limits_hold_over_all_processes(store: PostgresStore, other: PostgresStore) -> None:
    session, _ = await store.ensure_session("ann", None, None)
    strict = Admission(on_busy="reject")
    results = await asyncio.gather(
        *(start(process, session_id=session.id, admission=strict) for process in (store, other) * 4),
        return_exceptions=True,
    )
    assert sum(not isinstance(result, Exception) for result in results) == 1
    assert all(isinstance(result, SessionBusyError) for result in results if isinstance(result, Exception))
    same = await asyncio.gather(*(start(process, principal="bob", key="k") for process in (store, other) * 4))
    assert sum(accepted.created for accepted in same) == 1
    assert len({accepted.record.id for accepted in same}) == 1


async def test_turns_of_a_session_are_numbered_in_the_order_of_their_commits(
    store: PostgresStore, other: PostgresStore
) -> None:
    session, _ = await store.ensure_session("ann", None, None)
    many = Admission(max_queued=100)
    await asyncio.gather(*(start(process, session_id=session.id, admission=many) for process in (store, other) * 8))
    turns = await store.list_turns("ann", session_id=session.id)
    assert [turn.parent_turn_id for turn in turns] == [None, *[turn.id for turn in turns[:-1]]]


@pytest.mark.parametrize(
    ("hours_later", "outcome"), [(0, "completed"), (2, "failed")], ids=["at once", "two hours later"]
)
async def test_time_of_a_turn_is_measured_by_the_database(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, hours_later: int, outcome: str
) -> None:
    checked = asyncio.Event()
    check_deadline = Execution.check_deadline

    def check(execution: Execution, now: float) -> None:
        check_deadline(execution, now)
        checked.set()

    async def send(turn: Turn) -> AsyncGenerator[str]:
        # The approval makes a second claim, by which a part of the time may be over.
        await approval(ApprovalRequestEvent("c1", "send", {"to": "bob"}))
        await checked.wait()
        yield "sent"

    monkeypatch.setattr(Execution, "check_deadline", check)
    behind = 3_600
    store = await processes.join(clock=lambda: time.time() - behind)
    async with open_desk(store, send, turn_timeout=600) as desk:
        turn = await desk.start()
        await wait_until_suspended(desk, turn)
    behind -= hours_later * 3_600
    async with open_desk(store, send, turn_timeout=600) as desk:
        checked.clear()
        await desk.runner.decide(turn.id, "c1", approved=True)
        assert (await desk.end(turn)).outcome == outcome


# Partitions and sealed logs


async def test_partition_of_an_old_day_is_dropped_when_its_logs_are_sealed(
    processes: Processes, store: PostgresStore
) -> None:
    long_ago = now_ms() - 9 * DAY_MS
    name = partition_name(day_of(long_ago))
    old = await started(store, created_at=long_ago)
    assert name in processes.fetchval(PARTITIONS)
    await store.maintain(expire_before=0)
    assert name in processes.fetchval(PARTITIONS)
    await store.renew("worker")
    await write(store, await store.claim(old.id, "worker"), TokenEvent("at last"), end="completed")
    log = await whole_log(store, old.id)
    await store.maintain(expire_before=0)
    assert name not in processes.fetchval(PARTITIONS)
    assert partition_name(day_of(now_ms())) in processes.fetchval(PARTITIONS)
    assert await whole_log(store, old.id) == log
    assert (await started(store, created_at=long_ago)).id
    await store.maintain(expire_before=2**45)
    assert types(await whole_log(store, old.id, old.last_position + 1)) == ["done"]


async def test_dropping_partitions_never_makes_others_wait_for_a_reader(
    processes: Processes, store: PostgresStore
) -> None:
    """A waiting ACCESS EXCLUSIVE lock holds up everybody who comes after it."""
    days = [day_of(now_ms()) - age for age in (9, 8, 7)]
    for day in days:
        await ended(store, created_at=day * DAY_MS)
    needed = await started(store, created_at=days[2] * DAY_MS)
    reader, worker = await store.connections.connect(), await store.connections.connect()
    statements: list[str] = []

    class Recorder:
        """The worker's connection, and what it executes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(worker, name)

        async def execute(self, query: str, *values: object) -> str:
            statements.append(query)
            return await worker.execute(query, *values)

    recorder: Any = Recorder()
    try:
        async with reader.transaction():
            await reader.fetch(f"SELECT count(*) FROM {partition_name(days[0])}")
            await store.maintain(expire_before=0)
            await drop_partitions(recorder, day_of(now_ms()) - 1)
            # The read partition stays, and does not keep the next one; the needed one is not even locked.
            left = [name for day in days if (name := partition_name(day)) in processes.fetchval(PARTITIONS)]
            assert left == [partition_name(days[0]), partition_name(days[2])]
            assert not [query for query in statements if partition_name(days[2]) in query]
            assert all("lock_timeout = '20ms'" in query for query in statements if "LOCK TABLE" in query)
            assert (await started(store)).id
        assert await drop_partitions(worker, day_of(now_ms()) - 1) == 1
    finally:
        await reader.close(timeout=BOUND)
        worker.terminate()
    assert types(await whole_log(store, needed.id)) == ["session", "message"]


async def test_partition_of_tomorrow_is_created_today(processes: Processes, store: PostgresStore) -> None:
    tomorrow = partition_name(day_of(now_ms()) + 1)
    assert tomorrow in processes.fetchval(PARTITIONS)
    processes.fetchval(f"DROP TABLE {tomorrow}")
    await store.maintain(expire_before=0)
    assert tomorrow in processes.fetchval(PARTITIONS)


async def test_expired_and_deleted_events_are_in_no_table(processes: Processes, store: PostgresStore) -> None:
    secret = "the harbour master's number"
    expired, deleted = await ended(store, TokenEvent(secret)), await ended(store, TokenEvent(secret))
    await store.delete_session("ann", deleted.session_id)
    await store.maintain(expire_before=2**45)
    count = "SELECT count(*) FROM turnwire.event e JOIN turnwire.turn t ON t.number = e.turn"
    assert processes.fetchval(count) == 0
    assert processes.fetchval("SELECT count(*) FROM turnwire.sealed_log") == 1
    assert (await store.find_turn("ann", expired.id)).first_kept == expired.last_position


async def test_sealing_many_logs_does_not_hold_up_appends(processes: Processes, store: PostgresStore) -> None:
    records = [await ended(store, principal=f"p{number % 9}") for number in range(60)]
    running = await claimed(store)
    sealing = asyncio.gather(*(store.maintain(expire_before=0) for _ in range(2)))
    await append(store, running.id, running.epoch, 3, TokenEvent("meanwhile"))
    await sealing
    await store.maintain(expire_before=0)
    assert processes.fetchval("SELECT count(*) FROM turnwire.sealed_log") == len(records)
    assert processes.fetchval("SELECT count(*) FROM turnwire.turn WHERE NOT sealed") == 1


async def test_reader_of_a_turn_is_known_in_every_process(store: PostgresStore, other: PostgresStore) -> None:
    async def not_called(turn_id: str) -> None:
        raise AssertionError(turn_id)

    await other.renew("two")
    record = await claimed(store, "one")
    here, there = Presence(store, lambda: "one", not_called), Presence(other, lambda: "two", not_called)
    assert not await here.is_read(record.id)
    there.join(record)
    async with asyncio.timeout(BOUND):
        while not await here.is_read(record.id):
            pass
        there.depart(record.id, by_client=True)
        while await here.is_read(record.id):
            pass
    here.join(record)
    assert await here.is_read(record.id)
    here.depart(record.id, by_client=True)
    await asyncio.gather(*here._tasks)
    assert not await here.is_read(record.id)


async def test_reader_that_comes_and_goes_at_once_is_gone(store: PostgresStore) -> None:
    await store.renew("worker")
    record = await started(store, disconnect_grace=0)
    for _ in range(5):
        attended = await asyncio.gather(*(store.attend(record.id, "worker", present=here) for here in (True, False)))
        assert attended == [True, False]


async def test_lease_is_renewed_while_the_pool_is_exhausted(processes: Processes) -> None:
    store = await processes.join(connections=1)
    async with asyncio.timeout(BOUND), store.connections._free:  # The only connection of the pool is taken.
        await store.renew("busy", name="host:1")
    assert [worker.id for worker in await store.workers()] == ["busy"]
