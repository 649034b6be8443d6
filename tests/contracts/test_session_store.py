"""The contract of every store: sessions."""

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import claimed, ended, new_session_id, start, started, write
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import SessionBusyError, SessionNotFoundError, TurnNotFoundError
from turnwire.core.log.events import TokenEvent


async def test_created_session_is_found(store: Store) -> None:
    session, created = await store.ensure_session("ann", None, "Plans")
    assert created
    assert (session.principal, session.title, session.turn_count) == ("ann", "Plans", 0)
    assert await store.find_session("ann", session.id) == session


async def test_session_with_an_external_id_is_created_once(store: Store) -> None:
    session, created = await store.ensure_session("ann", "chat-1", None)
    again, created_again = await store.ensure_session("ann", "chat-1", "another title")
    assert (created, created_again) == (True, False)
    assert again == session
    assert await store.find_session("ann", "chat-1") == session


async def test_id_of_a_session_as_external_id_finds_that_session(store: Store) -> None:
    session, _ = await store.ensure_session("ann", None, "Plans")
    assert await store.ensure_session("ann", session.id, "Others") == (session, False)
    assert await store.find_session("ann", session.id) == session
    bobs, created = await store.ensure_session("bob", session.id, None)
    assert created
    assert bobs.id != session.id


async def test_session_of_another_principal_is_not_found(store: Store) -> None:
    anns, _ = await store.ensure_session("ann", "chat-1", "Ann's")
    bobs, created = await store.ensure_session("bob", "chat-1", "Bob's")
    assert created
    assert (await store.find_session("bob", "chat-1")).id == bobs.id != anns.id
    with pytest.raises(SessionNotFoundError):
        await store.find_session("bob", anns.id)
    with pytest.raises(SessionNotFoundError):
        await store.rename_session("bob", anns.id, "Mine now")
    with pytest.raises(SessionNotFoundError):
        await store.delete_session("bob", anns.id)
    with pytest.raises(SessionNotFoundError):
        await store.list_sessions("bob", before=anns.id)
    assert [session.id for session in await store.list_sessions("bob")] == [bobs.id]
    assert await store.list_sessions("bob", search="Ann") == []
    assert (await store.find_session("ann", anns.id)).title == "Ann's"


async def test_unknown_session_is_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFoundError):
        await store.find_session("ann", "nothing")
    with pytest.raises(SessionNotFoundError):
        await start(store, session_id="nothing")
    assert await store.next_turn("nothing", None) is None


async def test_first_message_becomes_the_title_of_an_untitled_session(store: Store) -> None:
    unnamed = await new_session_id(store)
    named, _ = await store.ensure_session("ann", None, "Plans")
    for message in ("where is\nthe station?", "and the bus?"):
        await started(store, session_id=unnamed, message=message)
        await started(store, session_id=named.id, message=message)
    assert (await store.find_session("ann", unnamed)).title == "where is the station?"
    assert (await store.find_session("ann", named.id)).title == "Plans"


async def test_session_counts_its_turns(store: Store) -> None:
    session_id = await new_session_id(store)
    await ended(store, session_id=session_id)
    await started(store, session_id=session_id)
    await started(store)
    assert (await store.find_session("ann", session_id)).turn_count == 2


async def test_new_turn_moves_its_session_to_the_front(store: Store) -> None:
    first, second = await new_session_id(store), await new_session_id(store)
    created_at = (await store.find_session("ann", first)).updated_at
    record = await started(store, session_id=first)
    found = await store.find_session("ann", first)
    assert found.updated_at == record.created_at >= created_at
    ids = [session.id for session in await store.list_sessions("ann")]
    assert sorted(ids) == sorted([first, second])
    sessions = await store.list_sessions("ann")
    assert sessions == sorted(sessions, key=lambda session: (session.updated_at, session.id), reverse=True)


async def test_sessions_are_paged_without_gap_or_repetition(store: Store) -> None:
    ids = {await new_session_id(store) for _ in range(7)}
    seen: list[str] = []
    while page := await store.list_sessions("ann", before=seen[-1] if seen else None, limit=3):
        assert len(page) <= 3
        seen += [session.id for session in page]
    assert len(seen) == len(ids) == 7
    assert set(seen) == ids


@pytest.mark.parametrize(
    ("term", "titles"),
    [
        ("harbour", ["The Harbour, 100%_sure\\", "lighthouse überfahrt"]),
        ("HARBOUR", ["The Harbour, 100%_sure\\", "lighthouse überfahrt"]),
        ("LightHouse", ["lighthouse überfahrt"]),
        ("ferries", ["lighthouse überfahrt"]),
        ("ÜBERFAHRT", ["lighthouse überfahrt"]),
        ("0%_sure\\", ["The Harbour, 100%_sure\\"]),
        ("STRASSE", ["Kelvin\u212a Straße"]),
        ("kelvinK s", ["Kelvin\u212a Straße"]),
        ("nowhere", []),
    ],
)
async def test_search_looks_in_titles_messages_and_answers(store: Store, term: str, titles: list[str]) -> None:
    await store.ensure_session("ann", None, "The Harbour, 100%_sure\\")
    await ended(store, TokenEvent("Three fer"), TokenEvent("ries from the harbour"), message="lighthouse überfahrt")
    await ended(store, TokenEvent("100% very sure"), message="something else")
    await store.ensure_session("ann", None, "Kelvin\u212a Straße")
    assert sorted(session.title or "" for session in await store.list_sessions("ann", search=term)) == titles


async def test_session_can_be_renamed_by_either_id(store: Store) -> None:
    session, _ = await store.ensure_session("ann", "chat-1", None)
    assert (await store.rename_session("ann", session.id, "First")).title == "First"
    assert (await store.rename_session("ann", "chat-1", "Second")).title == "Second"
    await started(store, session_id=session.id, message="a message")
    assert (await store.find_session("ann", session.id)).title == "Second"


async def test_deleted_session_loses_its_turns_and_logs(store: Store) -> None:
    session, _ = await store.ensure_session("ann", "chat-1", None)
    sealed = await ended(store, session_id=session.id)
    await store.maintain(expire_before=0)
    live = await ended(store, session_id=session.id, key="k", external_id="mine", fingerprint="f")
    other = await ended(store)
    await store.delete_session("ann", "chat-1")
    for record in (sealed, live):
        with pytest.raises(TurnNotFoundError):
            await store.read(record.id, 0, 10)
        with pytest.raises(TurnNotFoundError):
            await store.find_turn("ann", record.id)
        with pytest.raises(TurnNotFoundError):
            await store.turn_state(record.id)
    with pytest.raises(TurnNotFoundError):
        await store.find_turn("ann", "mine")
    with pytest.raises(SessionNotFoundError):
        await store.find_session("ann", session.id)
    assert [record.id for record in await store.list_turns("ann")] == [other.id]
    await store.maintain(expire_before=0)
    assert len(await store.read(other.id, 0, 10)) == other.last_position
    _, created = await store.ensure_session("ann", "chat-1", None)
    assert created
    assert (await start(store, key="k", external_id="mine", fingerprint="another")).created


async def test_session_with_an_unfinished_turn_is_not_deleted(store: Store) -> None:
    record = await claimed(store)
    with pytest.raises(SessionBusyError):
        await store.delete_session("ann", record.session_id)
    await write(store, record, end="cancelled")
    await store.delete_session("ann", record.session_id)
    assert await store.list_sessions("ann") == []


async def test_sessions_survive_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    session, _ = await store.ensure_session("ann", "chat-1", "Plans")
    deleted, _ = await store.ensure_session("ann", None, "Gone")
    await ended(store, session_id=session.id)
    await store.delete_session("ann", deleted.id)
    before = await store.find_session("ann", session.id)
    backend.crash()
    store = await backend.open()
    assert await store.list_sessions("ann") == [before]
