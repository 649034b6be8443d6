"""Resume points: how often a log is read to find one."""

from typing import Any

from tests.contracts.turns import append, claimed, done
from turnwire.core.contracts import Accepted
from turnwire.core.events import RestartEvent, TokenEvent
from turnwire.server.streams.resume import BYTES, START, find_point, find_start
from turnwire.stores.memory import MemoryStore
from turnwire.wires.three_phase_text.routes import THREE_PHASE_TEXT


class CountingStore(MemoryStore):
    """A store that counts how often a log is read from its start."""

    def __init__(self) -> None:
        super().__init__()
        self.walks = 0
        read = self.read

        async def counting(turn_id: str, after: int, limit: int, epoch: int | None = None) -> Any:
            self.walks += after == 0
            return await read(turn_id, after, limit, epoch)

        self.read = counting


async def test_log_of_a_created_turn_is_not_read() -> None:
    store = CountingStore()
    record = await claimed(store)
    assert await find_start(store, Accepted(record, created=True)) is START
    assert store.walks == 0
    assert await find_start(store, Accepted(record, created=False)) == START
    assert store.walks == 1


async def test_log_is_walked_once_and_once_more_for_each_restart() -> None:
    for restarts in range(3):
        store = CountingStore()
        record = await claimed(store)
        events = [TokenEvent("a"), *[RestartEvent(3, "worker_lost")] * restarts, TokenEvent("b")]
        await append(store, record.id, 1, 3, *events, done(record, "cancelled"), end=True)
        point = await find_point(store, record.id, THREE_PHASE_TEXT, BYTES, 0)
        assert (store.walks, len(point.void)) == (1 + restarts, restarts)
