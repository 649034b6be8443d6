"""The move from a folder to a database: everything, unchanged, and continued where it was interrupted."""

import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.stores import PostgresBackend, SqliteBackend
from tests.contracts.turns import append, claimed, ended, queued_turns, started, whole_log, write
from turnwire.core.contracts.stores import (
    Annotation,
    ApiKey,
    Command,
    JournalEntry,
    Store,
    UnfinishedFilter,
)
from turnwire.core.errors import StoreError, StoreUnusableError
from turnwire.core.log.events import StatusEvent, TokenEvent, UsageEvent
from turnwire.core.log.files import new_blob
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.stores.postgres.transfer import PostgresImport
from turnwire.stores.sqlite.transfer import SqliteExport
from turnwire.stores.transfer import Moved, move

pytestmark = pytest.mark.postgres


async def fill(store: Store) -> list[TurnRecord]:
    """Create a turn of every kind: sealed, ended, expired, queued, waiting, running."""
    session, _ = await store.ensure_session("ann", "her own name", "A title that she gave")
    expired = await ended(store, session_id=session.id, message="Ümlaut? ÄRGER")
    await store.maintain(expire_before=2**50)
    sealed = await claimed(store, session_id=session.id, key="k", fingerprint="f")
    log = TurnLog(store, sealed, Limits())
    log.record(JournalEntry(kind="tool", key="c1", state="finished", position=2, result=b'"done"'))
    await log.flush()
    await write(store, sealed, TokenEvent("sealed"), UsageEvent("m", input_tokens=3), end="completed")
    await store.maintain(expire_before=0)
    picture = new_blob(b"\x89PNG \x00", "image/png", "cat.png")
    plain = await ended(store, session_id=session.id, principal="ann", external_id="hers", blobs=[picture])
    lost = await claimed(store, "lost")
    log = TurnLog(store, lost, Limits())
    log.append(TokenEvent("half"))
    log.record(JournalEntry(kind="model", key="0", state="started", position=3))
    await log.flush()
    waiting = await claimed(store, "asking", options={"attachments": [{"name": "a.txt"}], "depth": 3})
    log = TurnLog(store, waiting, Limits())
    log.append(StatusEvent("may I?"))
    await log.suspend(2**50)
    held = await store.hold(waiting.id, "deciding")
    await append(store, waiting.id, held.epoch, 4, StatusEvent("thinking about it"))
    queued = await started(store, session_id=session.id, message="next", disconnect_grace=2.5)
    await store.command(Command(queued.id, "requested"))
    await store.add_key(ApiKey(id="key", digest="d", principal="ann", scopes=("read", "write"), created_at=5))
    opinion = Annotation(
        kind="feedback", key=plain.id, principal="ann", at=6, value="up", session_id=session.id, turn_id=plain.id
    )
    await store.annotate(opinion)
    await store.annotate(Annotation(kind="share", key="digest", principal="ann", at=7, session_id=session.id))
    return [expired, sealed, plain, lost, waiting, queued]


async def contents(store: Store, turns: list[TurnRecord]) -> dict[str, Any]:
    everything: dict[str, Any] = {}
    for turn in turns:
        record = await store.find_turn("ann", turn.id)
        log = await whole_log(store, turn.id, after=record.first_kept - 1)
        everything[turn.id] = (
            record,
            [(logged.position, logged.epoch, logged.at, logged.body) for logged in log],
            await store.turn_state(turn.id),
            await store.history(turn.id, 10),
            await store.journal(turn.id),
        )
    session_id = turns[0].session_id
    everything["files"] = [
        await store.read_blob(session_id, file.digest or "") for file in await store.list_blobs(session_id)
    ]
    assert everything["files"]
    everything["sessions"] = await store.list_sessions("ann")
    everything["search"] = [session.id for session in await store.list_sessions("ann", search="ärger")]
    everything["queued"] = [turn.id for turn in await queued_turns(store)]
    everything["waiting"] = [turn.id for turn in await store.unfinished(where=UnfinishedFilter(phase="waiting"))]
    everything["commands"] = await store.commands("anybody")
    everything["keys"] = await store.list_keys()
    everything["feedback"] = await store.list_annotations("feedback", None)
    everything["links"] = await store.list_annotations("share", None)
    everything["order"] = [turn.id for turn in await store.list_turns("ann")]
    day = turns[1].created_at // 86_400_000
    everything["spent"] = await store.tokens_used("ann", day)
    return everything


async def moved(folder: Path, url: str) -> Moved:
    source, target = SqliteExport(folder), PostgresImport(url)
    await source.open()
    await target.open()
    try:
        return await move(source, target, lambda _: None)
    finally:
        await target.close()
        await source.close()


async def test_move_copies_everything_unchanged(tmp_path: Path) -> None:
    folder, database = SqliteBackend(tmp_path), PostgresBackend(tmp_path)
    turns = await fill(await folder.open())
    folder.crash()
    store = await folder.open()
    expected = await contents(store, turns)
    await folder.close()
    assert (await moved(tmp_path, database.url)).turns == len(turns)
    target = await database.open()
    assert await contents(target, turns) == expected
    # The target works: the lost turn is taken over, and the queued one runs after it.
    await target.renew("new")
    (taken,) = await target.take_over("new")
    assert taken.id == turns[3].id
    await write(target, taken, end="interrupted")
    assert [turn.id for turn in await target.claim_next("new", 10)] == [turns[5].id]
    await database.close()


async def test_interrupted_move_continues_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, database = SqliteBackend(tmp_path), PostgresBackend(tmp_path)
    store = await folder.open()
    picture = new_blob(b"\x89PNG", "image/png")
    turns = [await ended(store, message=str(number), blobs=[picture]) for number in range(7)]
    expected = await contents(store, turns)
    await folder.close()
    monkeypatch.setattr("turnwire.stores.transfer._STEP", 2)
    take, calls = PostgresImport.take_turns, 0

    async def break_off(self: PostgresImport, turns: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StoreError("the cable was pulled")
        await take(self, turns)

    monkeypatch.setattr(PostgresImport, "take_turns", break_off)
    with pytest.raises(StoreError, match="cable"):
        await moved(tmp_path, database.url)
    again = await moved(tmp_path, database.url)
    assert (again.turns, again.there_before) == (3, 4)
    assert await contents(await database.open(), turns) == expected
    await database.close()


def _seal_truncated(lines: bytes) -> bytes:
    return zlib.compress(lines[:-1])


async def test_log_that_differs_after_the_move_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, database = SqliteBackend(tmp_path), PostgresBackend(tmp_path)
    await ended(await folder.open())
    await folder.close()
    monkeypatch.setattr("turnwire.stores.postgres.transfer.seal", _seal_truncated)
    with pytest.raises(StoreError, match="differs after the move"):
        await moved(tmp_path, database.url)
    await database.close()


async def test_folder_in_use_is_not_moved(tmp_path: Path) -> None:
    folder, database = SqliteBackend(tmp_path), PostgresBackend(tmp_path)
    await folder.open()
    with pytest.raises(StoreUnusableError, match="another turnwire server is using it"):
        await moved(tmp_path, database.url)
    await folder.close()
    await database.close()
