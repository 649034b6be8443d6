"""The contract of every store: ended turns are sealed, and a change after that is found and located."""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contracts.stores import MemoryBackend, PostgresBackend, SqliteBackend, StoreBackend
from tests.contracts.turns import claimed, ended
from tests.postgres_server import execute, run_aside
from turnwire.core.contracts.stores import JournalEntry, Store
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import CitationEvent, TokenEvent, ToolCallEvent, ToolResultEvent
from turnwire.core.log.seals import signature_of
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.stores import lines
from turnwire.stores.lines import decode_seal, encode_seal, seal
from turnwire.stores.verification import Verdict, verify_turn

KEY = b"k" * 32
Change = Callable[[list[bytes]], list[bytes]]
EVENTS = (TokenEvent("Grüße"), ToolCallEvent("c1", "find", {}), ToolResultEvent("c1", "find", True, "tin"))


async def sealed_turn(store: Store) -> TurnRecord:
    """Return an ended and sealed turn with 7 events and 3 journal entries."""
    record = await claimed(store)
    log = TurnLog(store, record, Limits())
    await log.restore()
    for number, event in enumerate((*EVENTS, CitationEvent(1, "doc"))):
        log.append(event)
        if number < 3:
            log.record(JournalEntry(kind="model", key=str(number), state="finished", position=3, result=b'"x"'))
    await log.end("completed")
    await store.maintain(expire_before=0)
    return await store.find_turn("ann", record.id)


async def verdict(store: Store, record: TurnRecord, *keys: bytes) -> Verdict:
    return await verify_turn(store, await store.find_turn("ann", record.id), keys)


async def test_ended_turn_is_sealed_and_intact(backend: StoreBackend) -> None:
    store = await backend.open(seal_key=KEY)
    before = now_ms()
    record = await ended(store)
    assert await store.seal(record.id) is None
    assert (await verdict(store, record)).state == "unsealed"
    whole = await sealed_turn(store)
    found = await store.seal(whole.id)
    assert found is not None
    assert (found.turn_id, found.events, found.entries) == (whole.id, whole.last_position, 3)
    assert before <= found.sealed_at <= now_ms()
    assert found.signature == signature_of(found, KEY)
    for turn in (record, whole):
        result = await verdict(store, turn, b"an older key", KEY)
        assert (result.state, result.is_signed, result.problem) == ("intact", True, None)
    with pytest.raises(TurnNotFoundError):
        await store.seal(new_id())


async def test_expired_turn_is_intact_with_a_gap(backend: StoreBackend) -> None:
    store = await backend.open(seal_key=KEY)
    record = await sealed_turn(store)
    await store.maintain(expire_before=now_ms() + 1_000)
    found = await store.seal(record.id)
    assert found is not None
    assert found.log_marks == b""
    assert (await verdict(store, record, KEY)).state == "gap"


def tamper(backend: StoreBackend, record: TurnRecord, change: Change, column: str = "body") -> None:
    """Change the lines of a sealed log or journal, as somebody with access to the database can."""
    body: bytes = stored(backend, record, column)
    store_value(backend, record, column, seal(b"\n".join(change(lines.unseal(body)))))


def _connected(backend: SqliteBackend | MemoryBackend) -> AbstractContextManager[sqlite3.Connection]:
    if isinstance(backend, MemoryBackend):
        return nullcontext(backend.connection)
    return closing(sqlite3.connect(backend.folder / "turnwire.db"))


def stored(backend: StoreBackend, record: TurnRecord, column: str) -> Any:
    query = f"SELECT {column} FROM {{}}sealed_log JOIN {{}}turn ON turn = number WHERE id = "
    if isinstance(backend, SqliteBackend | MemoryBackend):
        with _connected(backend) as connection:
            return connection.execute(query.format("", "") + "?", (record.id,)).fetchone()[0]
    assert isinstance(backend, PostgresBackend)
    query = query.format("turnwire.", "turnwire.") + f"'{record.id}'"
    return backend.call_now(None, lambda store: store.connections.fetch(query))[0][0]  # type: ignore[arg-type,attr-defined]


def store_value(backend: StoreBackend, record: TurnRecord, column: str, value: bytes) -> None:
    if isinstance(backend, SqliteBackend | MemoryBackend):
        with _connected(backend) as connection, connection:
            query = f"UPDATE sealed_log SET {column} = ? WHERE turn = (SELECT number FROM turn WHERE id = ?)"
            connection.execute(query, (value, record.id))
    else:
        assert isinstance(backend, PostgresBackend)
        number = f"(SELECT number FROM turnwire.turn WHERE id = '{record.id}')"
        query = f"UPDATE turnwire.sealed_log SET {column} = '\\x{value.hex()}' WHERE turn = {number}"
        run_aside(execute(backend.url, query))


async def reopened(backend: StoreBackend) -> Store:
    """Return the store of another process, which has nothing in its cache."""
    if isinstance(backend, SqliteBackend):
        await backend.close()
    return await backend.open(seal_key=KEY)


def rewritten_at(number: int) -> Change:
    """Change the time of a line, which stays readable."""

    def change(found: list[bytes]) -> list[bytes]:
        epoch, at, body = found[number].split(b" ", 2)
        return [*found[:number], b"%b %d %b" % (epoch, int(at) + 1, body), *found[number + 1 :]]

    return change


def dropped_at(number: int) -> Change:
    return lambda found: [*found[:number], *found[number + 1 :]]


def swapped_at(number: int) -> Change:
    return lambda found: [*found[:number], found[number + 1], found[number], *found[number + 2 :]]


async def test_first_changed_dropped_or_swapped_position_is_named(backend: StoreBackend) -> None:
    store = await backend.open(seal_key=KEY)
    record = await sealed_turn(store)
    original = lines.to_lines(await store.read(record.id, 0, 100)).split(b"\n")
    changes = [(rewritten_at(n), n + 1) for n in range(len(original))]
    changes += [(dropped_at(n), n + 1) for n in (2, 4)] + [(swapped_at(n), n + 1) for n in (2, 5)]
    changes.append((lambda found: found[:-1], len(original)))
    changes.append((lambda found: [*found, found[-1]], len(original) + 1))
    for change, position in changes:
        tamper(backend, record, change)
        store = await reopened(backend)
        result = await verdict(store, record, KEY)
        assert (result.state, result.position) == ("broken", position), result
        tamper(backend, record, lambda _: original)
    store = await reopened(backend)
    assert (await verdict(store, record, KEY)).state == "intact"


async def test_first_changed_entry_of_the_journal_is_named(backend: StoreBackend) -> None:
    store = await backend.open(seal_key=KEY)
    record = await sealed_turn(store)
    tamper(backend, record, lambda found: [found[0], found[1].replace(b'"x"', b'"y"'), found[2]], "calls")
    result = await verdict(await reopened(backend), record, KEY)
    assert (result.state, result.position) == ("broken", 2)
    assert "journal" in (result.problem or "")


async def test_changed_last_event_of_an_expired_log_is_found(backend: StoreBackend) -> None:
    store = await backend.open(seal_key=KEY)
    record = await sealed_turn(store)
    await store.maintain(expire_before=now_ms() + 1_000)
    record = await store.find_turn("ann", record.id)
    tamper(backend, record, rewritten_at(0))
    result = await verdict(await reopened(backend), record, KEY)
    assert (result.state, result.position) == ("broken", record.last_position)


async def test_seal_that_is_made_again_without_the_key_is_found(backend: StoreBackend) -> None:
    store = await backend.open(seal_key=KEY)
    record = await sealed_turn(store)
    found = decode_seal(stored(backend, record, "seal"))
    assert found is not None
    forged = replace(found, signature=signature_of(found, b"another key" * 3))
    store_value(backend, record, "seal", encode_seal(forged))
    store = await reopened(backend)
    result = await verdict(store, record, KEY)
    assert result.state == "broken"
    assert "signature" in (result.problem or "")
    assert (await verdict(store, record)).state == "intact"  # Without the key, the chain alone is checked.


async def test_log_without_a_key_is_sealed_without_a_signature(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await sealed_turn(store)
    result = await verdict(store, record)
    assert (result.state, result.is_signed) == ("intact", False)
    assert (await verdict(store, record, KEY)).problem == "its seal is not signed"
