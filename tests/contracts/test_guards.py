"""Proof that each check fails on a store without its guard: a check that cannot fail checks nothing."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from tests.contracts import checks
from tests.contracts.stores import StoreBackend
from turnwire.core.contracts.stores import AppendRequest, JournalEntry, Refusal, Store
from turnwire.core.errors import FencedError, PositionError, TurnEndedError
from turnwire.core.journal.turn_journal import TurnJournal
from turnwire.core.log.turn_log import TurnLog
from turnwire.stores import rules
from turnwire.stores.postgres import writer
from turnwire.stores.postgres.writer import PostgresWriter
from turnwire.stores.rules import LogHead
from turnwire.stores.sqlite.writer import SqliteAppend, SqliteWriter, Work

Check = Callable[[Store], Awaitable[None]]
GUARDED_BY: dict[type[Refusal], Check] = {
    FencedError: checks.check_append_with_old_epoch_is_refused,
    PositionError: checks.check_append_at_a_wrong_position_is_refused,
    TurnEndedError: checks.check_append_after_the_end_is_refused,
}


def remove_guard(guard: type[Refusal], monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a guard from the stores that decide in this process, and from the SQL of PostgreSQL."""
    refusal_of = LogHead.refusal

    def unguarded(head: LogHead, request: AppendRequest) -> Refusal | None:
        refusal = refusal_of(head, request)
        return None if isinstance(refusal, guard) else refusal

    monkeypatch.setattr(LogHead, "refusal", unguarded)
    guards = {
        FencedError: (writer.FENCE, "true"),
        PositionError: (writer.POSITION, "true"),
        # An ended turn has no head, so keep the head.
        TurnEndedError: (
            "DELETE FROM turnwire.head USING i",
            "UPDATE turnwire.head SET last_position = i.last_position FROM i",
        ),
    }
    for name in ("PLAIN", "CHANGING"):
        monkeypatch.setattr(writer, name, getattr(writer, name).replace(*guards[guard]))


@pytest.mark.parametrize("guard", GUARDED_BY, ids=lambda guard: guard.__name__)
async def test_store_without_a_guard_fails_its_check(
    store: Store, monkeypatch: pytest.MonkeyPatch, guard: type[Refusal]
) -> None:
    remove_guard(guard, monkeypatch)
    with pytest.raises(AssertionError, match=f"{guard.__name__} was due"):
        await GUARDED_BY[guard](store)
    for other, check in GUARDED_BY.items():
        if other is not guard:
            await check(store)


def publish_before_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store publish events just before it commits them."""

    def hasty_submit(writer: SqliteWriter, group: Sequence[Work]) -> None:
        for request in [work.request for work in group if isinstance(work, SqliteAppend)]:
            writer._turns.watchers.notify(request.turn_id, request.events)
            request.settle(len(request.events), None)
            request.settle = lambda count, error: None
        submit(writer, group)

    async def hasty_commit(writer: PostgresWriter, group: list[AppendRequest]) -> None:
        writer._publish(group)
        for append in group:
            append.settle = lambda count, error: None
        await commit(writer, group)

    submit, commit = SqliteWriter._submit, PostgresWriter._commit
    monkeypatch.setattr(PostgresWriter, "_commit", hasty_commit)
    monkeypatch.setattr(SqliteWriter, "_submit", hasty_submit)


async def test_store_that_publishes_before_commit_fails_the_check(
    backend: StoreBackend, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_before_commit(store, monkeypatch)
    with pytest.raises(AssertionError, match="published too early"):
        await checks.check_no_event_is_published_before_its_commit(backend, store)


async def test_store_that_takes_entries_ahead_of_their_events_fails_the_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rules, writer):
        monkeypatch.setattr(module, "entry_refusal", lambda request: None)
    with pytest.raises(AssertionError, match="PositionError was due"):
        await checks.check_entry_ahead_of_its_events_is_refused(store)


async def test_store_without_a_fence_fails_the_check_of_entries(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_guard(FencedError, monkeypatch)
    with pytest.raises(AssertionError, match="FencedError was due"):
        await checks.check_entry_with_old_epoch_is_refused(store)


async def test_log_that_commits_entries_later_than_their_events_fails_the_check(
    backend: StoreBackend, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep every entry back until its events are committed."""
    kept: list[JournalEntry] = []
    record, flush = TurnLog.record, TurnLog.flush

    async def record_then_flush(log: TurnLog) -> None:
        await flush(log)
        record(log, kept.pop())
        await flush(log)

    monkeypatch.setattr(TurnLog, "record", lambda log, entry: kept.append(entry))
    monkeypatch.setattr(TurnLog, "flush", record_then_flush)
    with pytest.raises(AssertionError, match="ahead of the journal"):
        await checks.check_entries_are_committed_with_their_events(backend, store)


async def test_journal_with_a_wrong_number_of_a_call_fails_the_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the next call of a run have the number of the last one."""
    finish = TurnJournal.finish

    def finish_without_counting(journal: TurnJournal, base: str, entry: JournalEntry, result: object) -> None:
        finish(journal, base, entry, result)
        journal._finished[base] -= 1

    monkeypatch.setattr(TurnJournal, "finish", finish_without_counting)
    with pytest.raises(AssertionError, match="wrong answers"):
        await checks.check_calls_are_answered_in_their_order(store)


async def test_journal_without_fingerprints_fails_the_check(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record = TurnLog.record
    monkeypatch.setattr(TurnLog, "record", lambda log, entry: record(log, replace(entry, fingerprint="")))
    with pytest.raises(AssertionError, match="was not noticed"):
        await checks.check_changed_request_is_named(store)
