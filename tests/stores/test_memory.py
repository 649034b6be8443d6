"""The memory store beyond the contract."""

import pytest

from tests.contracts.turns import ended, positions, whole_log
from turnwire.core.errors import EventsGoneError
from turnwire.stores.memory import MemoryStore


async def test_only_the_newest_logs_are_kept_whole() -> None:
    store = MemoryStore()
    store.max_whole_logs = 2
    oldest, *newest = [await ended(store, message=str(number)) for number in range(3)]
    await store.maintain(expire_before=0)
    for record in newest:
        assert positions(await whole_log(store, record.id)) == list(range(1, record.last_position + 1))
    with pytest.raises(EventsGoneError):
        await store.read(oldest.id, 0, 10)
    state = await store.turn_state(oldest.id)
    assert state is not None
    assert state.message == "0"


async def test_stores_share_nothing() -> None:
    await ended(MemoryStore())
    assert await MemoryStore().list_turns("ann") == []
