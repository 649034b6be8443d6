"""A worker that cannot reach the database: it stops its turns before another worker can take them over."""

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
from turnwire.core.log.events import Event
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.stores.postgres import PostgresStore

LEASE = 3.0
Answer = AsyncIterator[Event | str]


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


class StoppableAgent:
    """An agent that answers with a word and then works until it is cancelled."""

    def __init__(self) -> None:
        self.stopped_at: dict[str, float] = {}
        self.stopped = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def answer(self, turn: Turn) -> Answer:
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


async def committed(store: PostgresStore, turn: TurnRecord, agent: StoppableAgent) -> None:
    """Return when the first word can be read by another process."""
    await agent.has_begun.wait()
    async with aclosing(follow(store, turn.id, 2)) as batches:
        assert texts(await anext(batches)) == ["mine"]


async def is_running(store: PostgresStore, turn: TurnRecord) -> bool:
    return (await store.find_turn("ann", turn.id)).phase == "running"


async def test_worker_without_database_stops_its_agents_before_a_takeover(
    processes: Processes, network: FaultProxy, distant: PostgresStore
) -> None:
    agent = StoppableAgent()
    near = await processes.join(lease=LEASE)
    async with open_desk(distant, agent.answer, lease=LEASE) as desk, asyncio.timeout(BOUND):
        turn = await desk.start()
        await committed(near, turn, agent)
        [before] = await near.workers()
        network.swallow()
        async with open_desk(near, agent.answer, lease=LEASE) as other:
            done = await other.end(turn)
            taken_at = time.monotonic()
            assert (done.outcome, done.reason) == ("interrupted", "worker_lost")
            assert agent.stopped_at[turn.id] < taken_at
            assert texts(await whole_log(near, turn.id)) == ["mine"]
            network.mend()
            network.cut()
        # The process comes back as a new worker, without the claims and commands of the old one. A turn that the old
        # one has claimed in its last moment is closed too.
        while (outcome := (await desk.end(await desk.start("short"))).outcome) != "completed":
            assert outcome == "interrupted"
        assert desk.runner.worker.id != before.id


async def test_turn_of_an_expired_worker_is_closed_also_by_itself(
    network: FaultProxy, distant: PostgresStore, store: PostgresStore
) -> None:
    """Under its old id, the turn would look claimed for ever."""
    agent = StoppableAgent()
    async with open_desk(distant, agent.answer, lease=LEASE) as desk, asyncio.timeout(BOUND):
        turn = await desk.start()
        await committed(store, turn, agent)
        network.swallow()
        await agent.stopped.wait()
        assert await is_running(store, turn)  # The worker without a lease has written nothing.
        network.mend()
        network.cut()
        done = await desk.end(turn)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")


async def test_turn_claimed_after_the_lease_expired_is_not_run(
    network: FaultProxy, distant: PostgresStore, store: PostgresStore
) -> None:
    """The reply to a claim may arrive after the lease of its worker has expired."""
    agent = StoppableAgent()
    ran: list[str] = []

    async def second(turn: Turn) -> Answer:
        ran.append(turn.id)
        yield "done"

    async with open_desk(distant, agent.answer, second, lease=LEASE) as desk, asyncio.timeout(BOUND):
        turn = await desk.start()
        await committed(store, turn, agent)
        worker = desk.runner.worker
        held = asyncio.Event()
        claim_next = distant.claim_next

        async def late(worker_id: str, limit: int) -> list[TurnRecord]:
            claimed = await claim_next(worker_id, limit)
            if claimed:
                network.swallow()
                await agent.stopped.wait()
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
