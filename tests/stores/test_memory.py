"""The memory store beyond the contract."""

import pytest

from tests.contracts.turns import ended, positions, whole_log
from turnwire.core.errors import EventsGoneError
from turnwire.stores import memory
from turnwire.stores.memory import MemoryStore


async def test_only_the_newest_logs_are_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAX_WHOLE_LOGS", 2)
    store = MemoryStore()
    oldest, *newest = [await ended(store, message=str(number)) for number in range(3)]
    for record in newest:
        assert positions(await whole_log(store, record.id)) == list(range(1, record.last_position + 1))
    with pytest.raises(EventsGoneError):
        await store.read(oldest.id, 0, 10)
    state = await store.turn_state(oldest.id)
    assert state is not None
    assert state.message == "0"


async def test_store_without_tables_is_empty() -> None:
    await ended(MemoryStore())
    assert await MemoryStore().list_turns("ann") == []
