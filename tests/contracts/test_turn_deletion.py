"""The contract of every store: the deletion of a turn whose session stays."""

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import claimed, ended, new_session_id, start, started
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import SessionBusyError, TurnNotFoundError
from turnwire.core.log.events import TokenEvent


async def chain(store: Store, session_id: str) -> list[str]:
    turns = [await ended(store, TokenEvent(name), session_id=session_id, message=name) for name in ("one", "two")]
    return [*(turn.id for turn in turns), (await started(store, session_id=session_id, message="three")).id]


async def test_deleted_turn_is_not_found(store: Store) -> None:
    record = await ended(store, external_id="mine")
    await store.delete_turn("ann", "mine")
    for name in (record.id, "mine"):
        with pytest.raises(TurnNotFoundError):
            await store.find_turn("ann", name)
    with pytest.raises(TurnNotFoundError):
        await store.delete_turn("ann", record.id)
    with pytest.raises(TurnNotFoundError):
        await store.read(record.id, 0, 10)
    with pytest.raises(TurnNotFoundError):
        await store.turn_state(record.id)
    assert await store.list_turns("ann") == []
    assert (await store.find_session("ann", record.session_id)).turn_count == 0


async def test_key_and_external_id_of_a_deleted_turn_are_free(store: Store) -> None:
    session_id = await new_session_id(store)
    record = await ended(store, external_id="mine", key="k", session_id=session_id)
    await store.delete_turn("ann", record.id)
    again = await start(store, external_id="mine", key="k", session_id=session_id, fingerprint="another")
    assert again.created


@pytest.mark.parametrize("sealed", [False, True])
async def test_child_of_a_deleted_turn_continues_its_parent(store: Store, sealed: bool) -> None:
    session_id = await new_session_id(store)
    one, two, three = await chain(store, session_id)
    if sealed:
        await store.maintain(expire_before=0)
    await store.delete_turn("ann", two)
    assert (await store.find_turn("ann", three)).parent_turn_id == one
    assert [state.message for state in await store.history(three, 50)] == ["one"]
    await store.delete_turn("ann", one)
    assert (await store.find_turn("ann", three)).parent_turn_id is None
    assert await store.history(three, 50) == []


async def test_next_turn_continues_after_a_deleted_turn(store: Store) -> None:
    session_id = await new_session_id(store)
    one, two, three = await chain(store, session_id)
    await store.delete_turn("ann", two)
    following = await store.next_turn(session_id, two)
    assert following is not None
    assert following.id == three
    await store.delete_turn("ann", one)
    first = await store.next_turn(session_id, one)
    assert first is not None
    assert first.id == three


async def test_unfinished_turn_is_not_deleted(store: Store) -> None:
    for record in (await started(store), await claimed(store)):
        with pytest.raises(SessionBusyError):
            await store.delete_turn("ann", record.id)
        assert (await store.find_turn("ann", record.id)).id == record.id


async def test_delete_by_another_principal_is_refused(store: Store) -> None:
    record = await ended(store)
    with pytest.raises(TurnNotFoundError):
        await store.delete_turn("bob", record.id)
    assert (await store.find_turn("ann", record.id)).phase == "ended"


async def test_deleted_turn_stays_deleted_after_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    session_id = await new_session_id(store)
    one, two, three = await chain(store, session_id)
    await store.delete_turn("ann", two)
    backend.crash()
    store = await backend.open()
    assert [record.id for record in await store.list_turns("ann")] == [one, three]
    assert (await store.find_turn("ann", three)).parent_turn_id == one
    assert [state.message for state in await store.history(three, 50)] == ["one"]
