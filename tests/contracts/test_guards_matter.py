"""Each guard is taken out once, to prove that the contract would notice: a check that cannot fail checks nothing."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from tests.contracts import checks
from tests.contracts.stores import Place
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import AppendRequest, Refusal, Store
from turnwire.core.errors import FencedError, PositionError, TurnEndedError
from turnwire.stores.memory import MemoryStore
from turnwire.stores.postgres import writer
from turnwire.stores.postgres.writer import GroupedAppend as PostgresAppend
from turnwire.stores.postgres.writer import PostgresWriter as PostgresWriter
from turnwire.stores.rules import LogHead, Watchers
from turnwire.stores.sqlite.writer import PendingAppend, SqliteWriter, Work

Check = Callable[[Store], Awaitable[None]]
GUARDED_BY: dict[type[Refusal], Check] = {
    FencedError: checks.check_a_writer_that_was_taken_over_is_fenced,
    PositionError: checks.check_a_position_is_written_once,
    TurnEndedError: checks.check_a_log_ends_once,
}


def take_out(guard: type[Refusal], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the stores that decide in this process, and in the statements of the one that lets its database decide."""
    whole = LogHead.refusal

    def blind(head: LogHead, epoch: int, events: Sequence[LoggedEvent]) -> Refusal | None:
        refusal = whole(head, epoch, events)
        return None if isinstance(refusal, guard) else refusal

    monkeypatch.setattr(LogHead, "refusal", blind)
    guards = {
        FencedError: (writer.FENCE, "true"),
        PositionError: (writer.POSITION, "true"),
        # A turn that has ended has no head; so its head is left.
        TurnEndedError: (
            "DELETE FROM turnwire.head USING i",
            "UPDATE turnwire.head SET last_position = i.last_position FROM i",
        ),
    }
    for name in ("PLAIN", "CHANGING"):
        monkeypatch.setattr(writer, name, getattr(writer, name).replace(*guards[guard]))


@pytest.mark.parametrize("guard", GUARDED_BY, ids=lambda guard: guard.__name__)
async def test_a_store_without_the_guard_fails_the_check(
    store: Store, monkeypatch: pytest.MonkeyPatch, guard: type[Refusal]
) -> None:
    take_out(guard, monkeypatch)
    with pytest.raises(AssertionError, match=f"{guard.__name__} was due"):
        await GUARDED_BY[guard](store)
    for other, check in GUARDED_BY.items():
        if other is not guard:
            await check(store)


def tell_before_keeping(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stores say that events are committed, and commit them just after."""
    if isinstance(store, MemoryStore):
        watchers = Watchers()
        append, store.watch = store.append, watchers.add

        def hasty_append(request: AppendRequest) -> None:
            watchers.notify(request.turn_id, request.events)
            request.settle(len(request.events), None)
            append(replace(request, settle=lambda count, error: None))

        store.append = hasty_append

    def hasty_submit(writer: SqliteWriter, group: Sequence[Work]) -> None:
        if all(isinstance(work, PendingAppend) for work in group):
            writer._committed(group, None)
            writer._threads.submit(partial(writer._commit, group))
        else:
            submit(writer, group)

    async def hasty_commit(writer: PostgresWriter, group: list[PostgresAppend]) -> None:
        writer._publish(group)
        for append in group:
            append.settle = lambda count, error: None
        await commit(writer, group)

    submit, commit = SqliteWriter._submit, PostgresWriter._commit
    monkeypatch.setattr(PostgresWriter, "_commit", hasty_commit)
    monkeypatch.setattr(SqliteWriter, "_submit", hasty_submit)


async def test_a_store_that_tells_before_it_commits_fails_the_check(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_before_keeping(store, monkeypatch)
    with pytest.raises(AssertionError, match="told too early"):
        await checks.check_nothing_is_told_before_it_is_committed(place, store)
