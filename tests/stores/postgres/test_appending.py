"""What many turns write at once: one transaction, each checked for itself, and nothing lost with a connection."""

import asyncio
from collections.abc import AsyncIterator

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
    seized,
    start,
    started,
    texts,
    whole_log,
    write,
)
from tests.stores.postgres.conftest import Processes
from tests.stores.postgres.proxy import Fault, Proxy, proxied
from turnwire.core.budget import Limits
from turnwire.core.codec import LoggedEvent, log_event
from turnwire.core.errors import FencedError, PositionError, StoreError, StoreFullError
from turnwire.core.events import StatusEvent, TokenEvent
from turnwire.core.ids import new_id
from turnwire.core.log import TurnLog
from turnwire.core.turns import TurnState
from turnwire.stores.postgres import PostgresStore


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxied(shared_databases().server.folder) as proxy:
        yield proxy


@pytest.fixture
async def distant(processes: Processes, proxy: Proxy) -> PostgresStore:
    """A process whose connections can be broken."""
    processes.url, direct = proxy.url(processes.database), processes.url
    try:
        return await processes.join()
    finally:
        processes.url = direct


async def test_what_many_turns_write_at_once_is_one_transaction(processes: Processes, store: PostgresStore) -> None:
    records = [await claimed(store) for _ in range(20)]
    last = records.pop()
    await asyncio.gather(
        *(append(store, record.id, record.epoch, 3, TokenEvent("a"), TokenEvent("b")) for record in records),
        append(store, last.id, last.epoch, 3, done(last), end=True),
    )
    query = "SELECT count(*) || ' rows in ' || count(DISTINCT xmin::text) FROM turnwire.event WHERE first_position = 3"
    assert processes.ask(query) == "20 rows in 1"
    assert (await store.find_turn("ann", last.id)).phase == "ended"


async def test_what_is_refused_takes_nobody_with_it(store: PostgresStore) -> None:
    good, fenced, misplaced = [await claimed(store) for _ in range(3)]
    results = await asyncio.gather(
        append(store, good.id, good.epoch, 3, TokenEvent("good")),
        append(store, fenced.id, fenced.epoch - 1, 3, TokenEvent("late")),
        append(store, misplaced.id, misplaced.epoch, 4, TokenEvent("a gap before")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [list, FencedError, PositionError]
    assert [len(await whole_log(store, record.id)) for record in (good, fenced, misplaced)] == [3, 2, 2]


async def test_who_was_taken_over_by_another_process_writes_nothing_more(
    store: PostgresStore, other: PostgresStore
) -> None:
    """In the window before the new owner's first event, where the positions still agree."""
    zombie = await claimed(store, "zombie")
    await append(store, zombie.id, zombie.epoch, 3, TokenEvent("mine"))
    owner = await seized(other, zombie, "owner")
    with pytest.raises(FencedError):
        await append(store, zombie.id, zombie.epoch, 4, TokenEvent("late"))
    with pytest.raises(FencedError):
        await append(store, zombie.id, zombie.epoch, 4, done(zombie), end=True)
    await write(other, owner, TokenEvent("ours"), end="completed")
    assert texts(await whole_log(store, zombie.id)) == ["mine", "ours"]


async def test_a_released_turn_takes_nothing_until_somebody_claims_it(store: PostgresStore) -> None:
    record = await claimed(store)
    log = TurnLog(store, record, Limits())
    log.append(StatusEvent("somebody else goes on"))
    await log.release()
    with pytest.raises(FencedError):
        await append(store, record.id, record.epoch, 4, TokenEvent("late"))
    with pytest.raises(FencedError):
        await append(store, record.id, record.epoch, 4, done(record), end=True)
    assert positions(await whole_log(store, record.id)) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_a_connection_that_is_lost_in_a_commit_loses_and_doubles_nothing(
    processes: Processes, proxy: Proxy, distant: PostgresStore, fault: Fault
) -> None:
    record = await claimed(distant)
    quiet = await claimed(distant)
    proxy.break_at(b"break here", fault)
    told: list[bool] = []
    await asyncio.gather(
        append(
            distant,
            record.id,
            record.epoch,
            3,
            TokenEvent("break here"),
            told=lambda: told.append(len(processes.committed(record.id)) == 3),
        ),
        append(distant, quiet.id, quiet.epoch, 3, TokenEvent("beside it")),
    )
    assert proxy.happened.is_set()
    assert told == [True]
    await append(distant, record.id, record.epoch, 4, TokenEvent("and on"))
    assert texts(await whole_log(distant, record.id)) == ["break here", "and on"]
    assert texts(await whole_log(distant, quiet.id)) == ["beside it"]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_a_turn_ends_once_also_when_the_connection_is_lost_in_that_moment(
    proxy: Proxy, distant: PostgresStore, fault: Fault
) -> None:
    record = await claimed(distant)
    proxy.break_at(b'"type":"done"', fault)
    await append(distant, record.id, record.epoch, 3, done(record), end=True)
    assert proxy.happened.is_set()
    assert [logged.is_last for logged in await whole_log(distant, record.id)] == [False, False, True]


async def test_what_is_committed_later_than_it_is_looked_for_is_not_refused(
    processes: Processes, proxy: Proxy, distant: PostgresStore
) -> None:
    """The server has the statement, and is held up with it, when the connection is lost and the next attempt comes."""
    record = await claimed(distant)
    blocker, watcher = await asyncpg.connect(processes.url), await asyncpg.connect(processes.url)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(BOUND):
        await blocker.execute("BEGIN")
        await blocker.execute("SELECT 1 FROM turnwire.head WHERE id = $1 FOR UPDATE", record.id)
        writing = asyncio.create_task(append(distant, record.id, record.epoch, 3, TokenEvent("held up")))
        for attempts in (1, 2):
            while await watcher.fetchval(blocked) < attempts:  # noqa: ASYNC110 - the server has no other way to say it
                await asyncio.sleep(0.005)
            if attempts == 1:
                proxy.close()
        await blocker.execute("ROLLBACK")
        await writing
    await asyncio.gather(blocker.close(), watcher.close())
    assert texts(await whole_log(distant, record.id)) == ["held up"]


@pytest.mark.parametrize("says", [[], [TokenEvent("ours")]], ids=["silent", "speaking"])
async def test_who_is_taken_over_while_the_database_is_away_is_fenced(
    proxy: Proxy, distant: PostgresStore, store: PostgresStore, says: list[TokenEvent]
) -> None:
    """Also when the new owner has written something where its own words would have been."""
    zombie = await claimed(distant, "zombie")
    await append(distant, zombie.id, zombie.epoch, 3, TokenEvent("mine"))
    proxy.break_at(b"break here", "lose the request")
    proxy.is_open = False
    writing = asyncio.create_task(append(distant, zombie.id, zombie.epoch, 4, TokenEvent("break here")))
    async with asyncio.timeout(BOUND):
        await proxy.happened.wait()
    owner = await seized(store, zombie, "owner")
    for position, event in enumerate(says, start=4):
        await append(store, owner.id, owner.epoch, position, event)
    proxy.is_open = True
    with pytest.raises(FencedError):
        await writing
    assert texts(await whole_log(store, zombie.id)) == ["mine", *[event.content for event in says]]


@pytest.mark.parametrize("fault", ["lose the request", "lose the reply"])
async def test_a_turn_is_accepted_once_also_when_the_answer_is_lost(
    proxy: Proxy, distant: PostgresStore, fault: Fault
) -> None:
    session, _ = await distant.ensure_session("ann", None, None)
    proxy.break_at(b"COMMIT", fault)
    accepted = await start(distant, session_id=session.id, key="k")
    record = accepted.record
    assert proxy.happened.is_set()
    assert accepted.created
    assert [turn.id for turn in await distant.list_turns("ann")] == [record.id]
    assert [turn.id for turn in await distant.queued()] == [record.id]


async def test_what_was_claimed_is_known_also_when_the_answer_is_lost(proxy: Proxy, distant: PostgresStore) -> None:
    worker = new_id()
    await distant.renew(worker)
    turns = [(await started(distant)).id for _ in range(3)]
    proxy.break_at(worker.encode(), "lose the reply")
    assert [(record.id, record.epoch) for record in await distant.claim_next(worker, 2)] == [
        (turn_id, 1) for turn_id in turns[:2]
    ]
    assert proxy.happened.is_set()
    assert [record.id for record in await distant.claim_next(worker, 10)] == turns[2:]


async def test_what_cannot_be_written_fails_its_own_turn_alone(store: PostgresStore) -> None:
    good, poisoned = await claimed(store), await claimed(store)
    settled: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    last = log_event(done(poisoned), 3, poisoned.epoch)
    # No such outcome can come about; what matters is that the database refuses it.
    unheard_of = TurnState(outcome="\x00")  # type: ignore[arg-type]
    store.append(poisoned.id, poisoned.epoch, [last], lambda _, error: settled.set_result(error), unheard_of)
    await append(store, good.id, good.epoch, 3, TokenEvent("good"))
    async with asyncio.timeout(BOUND):
        error = await settled
    assert isinstance(error, StoreError)
    assert texts(await whole_log(store, good.id)) == ["good"]
    assert positions(await whole_log(store, poisoned.id)) == [1, 2]
    await write(store, await store.claim(poisoned.id, "worker"), end="failed")


async def test_what_a_full_disk_refuses_ends_when_there_is_room(processes: Processes, store: PostgresStore) -> None:
    earlier = await ended(store)
    record, ending = await claimed(store), await claimed(store)
    processes.ask(
        "CREATE FUNCTION turnwire.fill() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END $$"
    )
    trigger = "TRIGGER fill BEFORE INSERT ON turnwire.event FOR EACH ROW EXECUTE FUNCTION turnwire.fill()"
    processes.ask(f"CREATE {trigger}")
    try:
        with pytest.raises(StoreFullError):
            await append(store, record.id, record.epoch, 3, TokenEvent("no room"))
        with pytest.raises(StoreFullError):
            await started(store)
        last_words = asyncio.create_task(append(store, ending.id, ending.epoch, 3, done(ending, "failed"), end=True))
        assert len(await whole_log(store, earlier.id)) == earlier.last_position
    finally:
        processes.ask("DROP FUNCTION turnwire.fill CASCADE")
    await last_words
    await append(store, record.id, record.epoch, 3, TokenEvent("room again"))
    assert (await store.find_turn("ann", ending.id)).outcome == "failed"


async def test_nothing_is_lost_while_the_server_is_killed_and_started_again(
    store: PostgresStore, other: PostgresStore
) -> None:
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
