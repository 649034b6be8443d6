"""The contract of every store: the journal of a turn's calls, committed with the events that they belong to."""

import pytest

from tests.contracts import checks
from tests.contracts.stores import StoreBackend
from tests.contracts.turns import claimed, ended, seized, started, whole_log, write
from turnwire.core.contracts.stores import CallState, JournalEntry, Store
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.ids import new_id
from turnwire.core.log.events import ApprovalRequestEvent, TokenEvent, Usage
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits


def entry(key: str, state: CallState = "finished", **fields: object) -> JournalEntry:
    return JournalEntry(**{"kind": "model", "key": key, "state": state, "position": 2, **fields})  # type: ignore[arg-type]


WHOLE = entry(
    "Ünï\n#0",
    segment=3,
    epoch=1,
    since=2,
    names=("agent", "model"),
    fingerprint="f00",
    agent_path=("helper",),
    call_id="c1",
    args={"q": "a\tb"},
    repeatable=True,
    usage=Usage(input_tokens=3),
    result=b'{"text":"lone \\ud800, tab \\t, line \\n"}',
)


async def recorded(store: Store, *entries: JournalEntry, worker: str = "worker") -> TurnRecord:
    """Return a running turn with these entries, each in a commit of its own, without events."""
    record = await claimed(store, worker)
    log = TurnLog(store, record, Limits())
    for each in entries:
        log.record(each)
        await log.flush()
    return record


async def test_journal_of_a_new_turn_is_empty(store: Store) -> None:
    assert await store.journal((await started(store)).id) == []
    with pytest.raises(TurnNotFoundError):
        await store.journal(new_id())


async def test_entry_is_read_back_unchanged_and_in_order(store: Store) -> None:
    entries = [WHOLE, entry("b", "started"), entry("b"), entry("a")]
    record = await recorded(store, *entries)
    assert await store.journal(record.id) == entries
    assert len(await whole_log(store, record.id)) == 2


async def test_entries_and_events_of_one_request_are_committed_together(backend: StoreBackend, store: Store) -> None:
    await checks.check_entries_are_committed_with_their_events(backend, store)


async def test_entry_without_an_event_does_not_wake_readers(store: Store) -> None:
    record = await claimed(store)
    woken: list[object] = []
    store.watch(record.id, woken.append)
    log = TurnLog(store, record, Limits())
    log.record(entry("a"))
    await log.flush()
    assert woken == []
    log.append(TokenEvent("three"))
    await log.flush()
    assert len(woken) == 1
    assert [logged.position for logged in await whole_log(store, record.id)] == [1, 2, 3]


async def test_entry_of_a_fenced_writer_is_refused(store: Store) -> None:
    await checks.check_entry_with_old_epoch_is_refused(store)


async def test_entry_ahead_of_its_events_is_refused(store: Store) -> None:
    await checks.check_entry_ahead_of_its_events_is_refused(store)


async def test_calls_of_one_run_are_answered_in_their_order(store: Store) -> None:
    await checks.check_calls_are_answered_in_their_order(store)


async def test_changed_request_of_a_recorded_turn_is_named(store: Store) -> None:
    await checks.check_changed_request_is_named(store)


async def test_journals_of_concurrent_turns_do_not_mix(store: Store) -> None:
    records = [await claimed(store, session_id=None) for _ in range(3)]
    logs = [TurnLog(store, record, Limits()) for record in records]
    for number in range(5):
        for name, log in enumerate(logs):
            log.record(entry(f"{name} {number}"))
            if number % 2:
                log.append(TokenEvent("x"))
    for log in logs:
        await log.flush()
    for name, record in enumerate(records):
        assert [each.key for each in await store.journal(record.id)] == [f"{name} {number}" for number in range(5)]


async def test_journal_survives_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await recorded(store, WHOLE)
    backend.crash()
    store = await backend.open()
    assert await store.journal(record.id) == [WHOLE]
    owner = await seized(store, record, "owner")
    log = TurnLog(store, owner, Limits())
    log.record(entry("later"))
    await log.flush()
    assert await store.journal(record.id) == [WHOLE, entry("later")]


async def test_entries_are_committed_with_a_suspension_a_release_and_an_end(store: Store) -> None:
    record = await claimed(store)
    log = TurnLog(store, record, Limits())
    log.append(ApprovalRequestEvent("c1", "send", {}))
    log.record(entry("suspended"))
    await log.suspend(12_345)
    log = TurnLog(store, record := await store.claim(record.id, "worker"), Limits())
    log.append(TokenEvent("x"))
    log.record(entry("released"))
    await log.release()
    log = TurnLog(store, await store.claim(record.id, "worker"), Limits())
    await log.restore()
    log.record(entry("ended"))
    await log.end("completed")
    assert [each.key for each in await store.journal(record.id)] == ["suspended", "released", "ended"]


async def test_sealed_journal_reads_the_same_also_after_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await recorded(store, WHOLE, entry("b"))
    plain = await ended(store)
    await write(store, record, end="completed")
    await store.maintain(expire_before=0)
    assert await store.journal(record.id) == [WHOLE, entry("b")]
    assert await store.journal(plain.id) == []
    backend.crash()
    assert await (await backend.open()).journal(record.id) == [WHOLE, entry("b")]


async def test_journal_is_gone_with_the_expired_events(store: Store) -> None:
    record = await recorded(store, WHOLE)
    await write(store, record, end="completed")
    await store.maintain(expire_before=2**50)
    assert await store.journal(record.id) == []


@pytest.mark.parametrize("sealed", [False, True])
async def test_journal_is_erased_with_its_turn_and_with_its_session(store: Store, sealed: bool) -> None:
    for erase_session in (False, True):
        record = await recorded(store, WHOLE)
        await write(store, record, end="completed")
        if sealed:
            await store.maintain(expire_before=0)
        if erase_session:
            await store.delete_session("ann", record.session_id)
        else:
            await store.delete_turn("ann", record.id)
        with pytest.raises(TurnNotFoundError):
            await store.journal(record.id)
