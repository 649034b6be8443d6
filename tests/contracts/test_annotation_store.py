"""The contract of every store: annotations, which are kept beside the logs and erased with their subjects."""

import pytest
from msgspec.structs import replace

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import ended, new_session_id
from turnwire.core.contracts.stores import Annotation, Store
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.ids import new_id
from turnwire.core.log.turns import TurnRecord


def feedback_on(record: TurnRecord, value: str = "up") -> Annotation:
    return Annotation(
        kind="feedback",
        key=record.id,
        principal=record.principal,
        at=1_000,
        value=value,
        session_id=record.session_id,
        turn_id=record.id,
    )


def link_to(session_id: str, digest: str, principal: str = "ann") -> Annotation:
    return Annotation(kind="share", key=digest, principal=principal, at=1_000, session_id=session_id)


async def test_annotation_is_kept_whole_and_found_by_kind_and_key(store: Store) -> None:
    annotation = feedback_on(await ended(store), '{"note":"\\u0000 ü \'; --"}')
    await store.annotate(annotation)
    assert await store.find_annotation("feedback", annotation.key) == annotation
    assert await store.find_annotation("share", annotation.key) is None
    assert await store.find_annotation("feedback", "\x00 unknown") is None


async def test_annotation_without_a_subject_belongs_to_its_principal(store: Store) -> None:
    subscription = Annotation(kind="push_subscription", key="endpoint", principal="ann", at=1, value="{}")
    await store.annotate(subscription)
    assert await store.list_annotations("push_subscription", "ann") == [subscription]
    assert await store.list_annotations("push_subscription", "bob") == []


async def test_second_annotation_of_a_kind_and_key_replaces_the_first(store: Store) -> None:
    record = await ended(store)
    await store.annotate(feedback_on(record, "up"))
    await store.annotate(replace(feedback_on(record, "down"), at=2_000))
    (annotation,) = await store.list_annotations("feedback", "ann")
    assert (annotation.value, annotation.at) == ("down", 2_000)


async def test_annotations_are_listed_by_descending_keys_in_pages(store: Store) -> None:
    session_id = await new_session_id(store)
    records = [await ended(store, session_id=session_id) for _ in range(3)]
    for record in records:
        await store.annotate(feedback_on(record))
    other = await ended(store, principal="bob")
    await store.annotate(feedback_on(other))
    ids = sorted((record.id for record in records), reverse=True)
    first = await store.list_annotations("feedback", "ann", limit=2)
    assert [annotation.key for annotation in first] == ids[:2]
    rest = await store.list_annotations("feedback", "ann", before=first[-1].key)
    assert [annotation.key for annotation in rest] == ids[2:]
    assert len(await store.list_annotations("feedback", None)) == 4
    in_session = await store.list_annotations("feedback", "ann", session_id=session_id)
    assert [annotation.key for annotation in in_session] == ids
    assert await store.list_annotations("feedback", "ann", session_id=other.session_id) == []


async def test_annotation_of_an_unknown_subject_is_refused(store: Store) -> None:
    record = await ended(store)
    for annotation, error in (
        (link_to(new_id(), "digest"), SessionNotFoundError),
        (link_to(record.session_id, "digest", principal="bob"), SessionNotFoundError),
        (replace(feedback_on(record), turn_id=new_id()), TurnNotFoundError),
        (replace(feedback_on(record), session_id=None, principal="bob"), TurnNotFoundError),
    ):
        with pytest.raises(error):
            await store.annotate(annotation)
    assert await store.list_annotations("share", None) == []
    assert await store.list_annotations("feedback", None) == []


async def test_annotations_are_removed_by_key_or_session_of_their_principal(store: Store) -> None:
    mine, other = await new_session_id(store), await new_session_id(store)
    for digest, session_id in (("a", mine), ("b", mine), ("c", other), ("d", other)):
        await store.annotate(link_to(session_id, digest))
    assert await store.remove_annotations("share", "bob", session_id=mine) == 0
    assert await store.remove_annotations("feedback", "ann", session_id=mine) == 0
    assert await store.remove_annotations("share", "ann", session_id=mine) == 2
    assert await store.remove_annotations("share", "ann", session_id=mine) == 0
    assert await store.remove_annotations("share", "ann", key="d") == 1
    assert [annotation.key for annotation in await store.list_annotations("share", None)] == ["c"]


async def test_deleted_turn_takes_its_annotations_along(store: Store) -> None:
    session_id = await new_session_id(store)
    gone, kept = [await ended(store, session_id=session_id) for _ in range(2)]
    for annotation in (feedback_on(gone), feedback_on(kept), link_to(session_id, "digest")):
        await store.annotate(annotation)
    await store.delete_turn("ann", gone.id)
    assert await store.list_annotations("feedback", None) == [feedback_on(kept)]
    assert await store.find_annotation("share", "digest") is not None


async def test_deleted_session_takes_its_annotations_along(store: Store) -> None:
    gone, kept = await ended(store), await ended(store)
    for record in (gone, kept):
        await store.annotate(feedback_on(record))
        await store.annotate(link_to(record.session_id, f"digest of {record.id}"))
    await store.delete_session("ann", gone.session_id)
    assert await store.list_annotations("feedback", None) == [feedback_on(kept)]
    assert [link.session_id for link in await store.list_annotations("share", None)] == [kept.session_id]


async def test_annotations_survive_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    annotation = feedback_on(await ended(store))
    await store.annotate(annotation)
    backend.crash()
    store = await backend.open()
    assert await store.list_annotations("feedback", "ann") == [annotation]
