"""A worker that cannot reach the database lets go of its turns while nobody else can have them yet."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from tests.contracts.stores import shared_databases
from tests.contracts.turns import BOUND, texts, whole_log
from tests.core.desk import open_desk
from tests.faults.proxy import FaultProxy, faulty
from tests.stores.postgres.conftest import Processes
from turnwire.core.events import Event
from turnwire.core.follow import follow
from turnwire.core.turns import Turn, TurnRecord
from turnwire.stores.postgres import PostgresStore

LEASE = 1.0
Said = AsyncIterator[Event | str]


@pytest.fixture
async def network() -> AsyncIterator[FaultProxy]:
    async with faulty(shared_databases().server.folder / ".s.PGSQL.5432") as network:
        yield network


@pytest.fixture
async def distant(processes: Processes, network: FaultProxy) -> PostgresStore:
    direct = processes.url
    processes.url = f"postgresql://postgres@127.0.0.1:{network.port}/{processes.database}?sslmode=disable"
    try:
        return await processes.join(lease=LEASE)
    finally:
        processes.url = direct


class Watched:
    """An agent that says a word and works on, until it is stopped."""

    def __init__(self) -> None:
        self.stopped_at: dict[str, float] = {}
        self.stopped = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def answer(self, turn: Turn) -> Said:
        if turn.message == "short":
            yield "done"
            return
        try:
            yield "mine"
            self.has_begun.set()
            await asyncio.Event().wait()
        finally:
            self.stopped_at[turn.id] = time.monotonic()
            self.stopped.set()
        yield "never"


async def committed(store: PostgresStore, turn: TurnRecord, watched: Watched) -> None:
    """When the first word can be read elsewhere."""
    await watched.has_begun.wait()
    async with aclosing(follow(store, turn.id, 2)) as batches:
        assert texts(await anext(batches)) == ["mine"]


async def is_running(store: PostgresStore, turn: TurnRecord) -> bool:
    return (await store.find_turn("ann", turn.id)).phase == "running"


async def test_a_worker_in_the_dark_stops_its_agents_before_another_has_its_turns(
    processes: Processes, network: FaultProxy, distant: PostgresStore
) -> None:
    watched = Watched()
    near = await processes.join(lease=LEASE)
    async with open_desk(distant, watched.answer, lease=LEASE) as desk, asyncio.timeout(BOUND):
        turn = await desk.start()
        await committed(near, turn, watched)
        [before] = await near.workers()
        network.swallow()
        async with open_desk(near, watched.answer, lease=LEASE) as other:
            done = await other.end(turn)
            taken_at = time.monotonic()
            assert (done.outcome, done.reason) == ("interrupted", "worker_lost")
            assert watched.stopped_at[turn.id] < taken_at
            assert texts(await whole_log(near, turn.id)) == ["mine"]
            network.mend()
            network.cut()
        # Who comes back is a new worker: nothing that the old one was told, or had, is its own.
        short = await desk.start("short")
        assert (await desk.end(short)).outcome == "completed"
        assert desk.runner.worker != before.id


async def test_what_a_worker_let_go_is_closed_by_whoever_comes_first_also_itself(
    network: FaultProxy, distant: PostgresStore, store: PostgresStore
) -> None:
    """Its old name would say for ever that somebody has the turn."""
    watched = Watched()
    async with open_desk(distant, watched.answer, lease=LEASE) as desk, asyncio.timeout(BOUND):
        turn = await desk.start()
        await committed(store, turn, watched)
        network.swallow()
        await watched.stopped.wait()
        assert await is_running(store, turn)  # Nothing was written that nobody may know of.
        network.mend()
        network.cut()
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")


async def test_a_turn_that_was_claimed_for_a_worker_that_is_no_more_is_not_run(
    network: FaultProxy, distant: PostgresStore, store: PostgresStore
) -> None:
    """The answer to a claim may come when the lease of whoever claimed is over."""
    watched = Watched()
    ran: list[str] = []

    async def second(turn: Turn) -> Said:
        ran.append(turn.id)
        yield "done"

    async with open_desk(distant, watched.answer, second, lease=LEASE) as desk, asyncio.timeout(BOUND):
        turn = await desk.start()
        await committed(store, turn, watched)
        worker = desk.runner._worker
        held = asyncio.Event()
        claim_next = distant.claim_next

        async def late(worker_id: str, limit: int) -> list[TurnRecord]:
            claimed = await claim_next(worker_id, limit)
            if claimed:
                network.swallow()
                await watched.stopped.wait()
                held.set()
            return claimed

        distant.claim_next = late  # type: ignore[method-assign]
        late_turn = await desk.start(agent="second")
        await held.wait()
        distant.claim_next = claim_next  # type: ignore[method-assign]
        async with worker._claiming:
            pass
        assert late_turn.id not in worker.running
        network.mend()
        network.cut()
        done = await desk.end(late_turn)
        assert ran == []
        assert (done.outcome, done.reason) == ("interrupted", "worker_lost")
        assert (await desk.end(turn)).outcome == "interrupted"
