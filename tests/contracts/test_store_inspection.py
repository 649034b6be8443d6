"""The store contract for live workers and unfinished turns."""

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import claimed, ended, started
from turnwire.core.contracts.stores import Store, UnfinishedFilter


async def test_workers_lists_live_leases(backend: StoreBackend) -> None:
    now = 0.0
    store = await backend.open(lease=10, clock=lambda: now)
    await store.renew("first", name="host:1")
    now += 6
    await store.renew("second")
    first, second = await store.workers()
    assert (first.id, second.id) == ("first", "second")
    assert first.lease_until < second.lease_until
    assert first.started_at <= second.started_at
    assert (first.name, second.name) == ("host:1", "")
    now += 5
    assert [worker.id for worker in await store.workers()] == ["second"]


async def test_under_way_lists_unfinished_turns_in_order(store: Store) -> None:
    running = await claimed(store, "worker", principal="ann")
    await ended(store, principal="ann")
    queued = await started(store, principal="bob")
    everybody = await store.unfinished(limit=10)
    assert [(record.id, record.phase) for record in everybody] == [(running.id, "running"), (queued.id, "queued")]
    assert everybody[0].worker == "worker"
    assert await store.unfinished(where=UnfinishedFilter(principal="bob")) == everybody[1:]
    assert await store.unfinished(limit=1) == everybody[:1]
