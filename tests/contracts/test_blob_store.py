"""The contract of every store: files of sessions, kept once by their digest, and erased with what they belong to."""

import pytest

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import claimed, ended, new_session_id, start, write
from turnwire.core.contracts.stores import Admission, Store
from turnwire.core.errors import FilesFullError, SessionFileNotFoundError, SessionNotFoundError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import now_ms
from turnwire.core.log.files import Blob, new_blob

PICTURE = new_blob(bytes(range(256)) * 9, "image/png", "ünï \n'; --.png")
NOTES = new_blob(b"notes", "text/plain")
NO_LIMIT = 2**40


async def put(store: Store, session_id: str, *blobs: Blob) -> None:
    for blob in blobs:
        await store.put_blob("ann", session_id, blob, max_bytes=NO_LIMIT)


async def digests(store: Store, session_id: str) -> list[str | None]:
    return [file.digest for file in await store.list_blobs(session_id)]


async def test_file_is_kept_whole_over_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    session_id = await new_session_id(store)
    await put(store, session_id, PICTURE, NOTES)
    backend.crash()
    store = await backend.open()
    assert await store.read_blob(session_id, PICTURE.digest) == PICTURE
    assert await store.list_blobs(session_id) == [PICTURE.info, NOTES.info]


async def test_unknown_digest_and_other_session_have_no_file(store: Store) -> None:
    session_id = await new_session_id(store)
    await put(store, session_id, PICTURE)
    assert await store.read_blob(session_id, NOTES.digest) is None
    assert await store.read_blob(session_id, "\x00") is None
    other = await new_session_id(store)
    assert await store.read_blob(other, PICTURE.digest) is None
    assert await store.list_blobs(other) == []


async def test_same_file_is_stored_once_in_a_session(store: Store) -> None:
    session_id = await new_session_id(store)
    await put(store, session_id, PICTURE)
    again = new_blob(PICTURE.body, "image/x-other", "other.png")
    await store.put_blob("ann", session_id, again, max_bytes=len(PICTURE.body))
    await start(store, session_id=session_id, blobs=[again], admission=Admission(max_file_bytes=len(PICTURE.body)))
    assert await store.list_blobs(session_id) == [PICTURE.info]


@pytest.mark.parametrize("principal", ["ann", "bob"])
async def test_file_for_an_unknown_or_foreign_session_is_refused(store: Store, principal: str) -> None:
    session_id = await new_session_id(store, "ann" if principal == "bob" else "bob")
    for name in (session_id, new_id()):
        with pytest.raises(SessionNotFoundError):
            await store.put_blob(principal, name, PICTURE, max_bytes=NO_LIMIT)
    assert await store.list_blobs(session_id) == []


async def test_files_over_the_limit_of_a_session_are_refused_and_nothing_is_written(store: Store) -> None:
    session_id = await new_session_id(store)
    await put(store, session_id, NOTES)
    limit = len(NOTES.body) + len(PICTURE.body) - 1
    with pytest.raises(FilesFullError):
        await store.put_blob("ann", session_id, PICTURE, max_bytes=limit)
    with pytest.raises(FilesFullError):
        await start(store, session_id=session_id, blobs=[PICTURE], admission=Admission(max_file_bytes=limit))
    assert await digests(store, session_id) == [NOTES.digest]
    assert await store.list_turns("ann") == []
    await store.put_blob("ann", session_id, PICTURE, max_bytes=limit + 1)


async def test_turn_that_needs_a_missing_file_is_refused_and_nothing_is_written(store: Store) -> None:
    session_id = await new_session_id(store)
    with pytest.raises(SessionFileNotFoundError):
        await start(store, session_id=session_id, blobs=[NOTES], digests=[PICTURE.digest])
    assert await digests(store, session_id) == []
    assert await store.list_turns("ann") == []


async def test_repeated_turn_stores_nothing(store: Store) -> None:
    session_id = await new_session_id(store)
    first = await start(store, session_id=session_id, key="k", blobs=[NOTES])
    again = await start(store, session_id=session_id, key="k", blobs=[PICTURE])
    assert (again.record.id, again.created) == (first.record.id, False)
    assert await digests(store, session_id) == [NOTES.digest]


async def test_files_are_erased_with_their_session(store: Store) -> None:
    record = await ended(store, blobs=[PICTURE])
    other = await ended(store, blobs=[PICTURE])
    await store.delete_session("ann", record.session_id)
    assert await store.read_blob(record.session_id, PICTURE.digest) is None
    assert await store.read_blob(other.session_id, PICTURE.digest) == PICTURE


async def test_file_is_erased_with_the_last_turn_that_needs_it(store: Store) -> None:
    session_id = await new_session_id(store)
    one = await ended(store, session_id=session_id, blobs=[PICTURE, NOTES])
    two = await ended(store, session_id=session_id, digests=[PICTURE.digest])
    await ended(store, blobs=[PICTURE])  # Of another session.
    await store.delete_turn("ann", one.id)
    assert await digests(store, session_id) == [PICTURE.digest]
    await store.delete_turn("ann", two.id)
    assert await digests(store, session_id) == []


async def test_uploaded_file_stays_when_another_turn_is_deleted(store: Store) -> None:
    session_id = await new_session_id(store)
    await put(store, session_id, NOTES)
    one = await ended(store, session_id=session_id, blobs=[PICTURE])
    await store.delete_turn("ann", one.id)
    assert await digests(store, session_id) == [NOTES.digest]


async def test_files_expire_with_the_events_of_the_turns_that_need_them(store: Store) -> None:
    session_id = await new_session_id(store)
    await put(store, session_id, NOTES)
    await ended(store, session_id=session_id, blobs=[PICTURE])
    await store.maintain(expire_before=0)
    assert await digests(store, session_id) == [NOTES.digest, PICTURE.digest]
    await store.maintain(expire_before=now_ms() + 60_000)
    assert await digests(store, session_id) == []


async def test_file_of_an_unfinished_turn_does_not_expire(store: Store) -> None:
    record = await claimed(store, blobs=[PICTURE])
    await store.maintain(expire_before=now_ms() + 60_000)
    assert await digests(store, record.session_id) == [PICTURE.digest]
    await write(store, record, end="completed")
    await store.maintain(expire_before=now_ms() + 60_000)
    assert await digests(store, record.session_id) == []
