"""Notifications of the commits of other processes: soon with hints, a little later without, never wrong."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.contracts.stores import shared_databases
from tests.contracts.turns import (
    BOUND,
    append,
    claimed,
    done,
    ended,
    followed,
    new_session_id,
    positions,
    started,
    texts,
    whole_log,
    write,
)
from tests.stores.postgres.conftest import Processes
from tests.stores.postgres.proxy import proxied
from turnwire.core.contracts.stores import RUNNABLE, Command
from turnwire.core.errors import LogRewoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.follow import Follower
from turnwire.stores.postgres import PostgresStore, notifications
from turnwire.stores.postgres.connections import ConnectionPool
from turnwire.stores.postgres.notifications import payloads

NEVER = 1_000.0


class Watcher:
    """A watcher that records its wakes."""

    def __init__(self, store: PostgresStore, key: str) -> None:
        self.wakes: list[Sequence[LoggedEvent]] = []
        self._changed = asyncio.Event()
        store.watch(key, self._wake)

    def _wake(self, events: Sequence[LoggedEvent]) -> None:
        self.wakes.append(events)
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


class Reader:
    """A follower of a turn that keeps its events."""

    def __init__(self, store: PostgresStore, turn_id: str) -> None:
        self.seen: list[LoggedEvent] = []
        self._changed = asyncio.Event()
        self.follower = Follower(store, turn_id, 0, self._take, lambda error: None)

    def _take(self, events: Sequence[LoggedEvent], is_last: bool) -> None:
        self.seen += events
        self._changed.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()


async def until_notified(store: PostgresStore, turn_id: str, holds: Callable[[], bool]) -> None:
    """Return when hints of another process have come; queries let time pass."""
    async with asyncio.timeout(BOUND):
        while not holds():
            await store.find_turn("ann", turn_id)


async def listening(store: PostgresStore) -> None:
    """Return when the store receives hints."""
    hints = store._notifier._hints
    assert hints is not None
    async with asyncio.timeout(BOUND):
        await hints.is_listening.wait()


async def test_reader_with_hints_needs_no_polling(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    record = await claimed(store, "worker")
    reader = Reader(other, record.id)
    await reader.has(2)
    for position in range(3, 9):
        await append(store, record.id, record.epoch, position, TokenEvent(str(position)))
        await reader.has(position)
    await append(store, record.id, record.epoch, 9, done(record), end=True)
    await reader.has(9)
    assert reader.seen == await whole_log(store, record.id)


async def test_followers_of_many_turns_are_served_by_one_query(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they have caught up, new events are read for all of them together, and none reads for itself."""
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    records = [await claimed(store, principal=f"p{number % 4}") for number in range(40)]
    readers = [Reader(other, record.id) for record in records]
    await asyncio.gather(*(append(store, r.id, r.epoch, 3, TokenEvent("first ")) for r in records))
    for reader in readers:
        await reader.has(3)
        while reading := reader.follower._reading:
            await asyncio.wait([reading])
    reads: list[str] = []
    queries: list[str] = []
    pool = other._following
    read, fetch = other.read, pool.fetch
    monkeypatch.setattr(other, "read", lambda turn_id, *rest: reads.append(turn_id) or read(turn_id, *rest))
    monkeypatch.setattr(pool, "fetch", lambda query, *values: queries.append(query) or fetch(query, *values))
    await asyncio.gather(
        *(append(store, r.id, r.epoch, 4, *(TokenEvent(f"{r.id} {n}") for n in range(5))) for r in records)
    )
    for reader in readers:
        await reader.has(8)
    assert reads == []
    assert len(queries) <= 3
    for record, reader in zip(records, readers, strict=True):
        assert texts(reader.seen) == ["first ", *[f"{record.id} {number}" for number in range(5)]]


async def caught_up(reader: Reader, count: int) -> None:
    """Return when the reader has so many events, and waits for a hint."""
    await reader.has(count)
    while reading := reader.follower._reading:
        await asyncio.wait([reading])


def count_calls(pool: ConnectionPool, calls: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool.run

    async def run_counted(call: Any, *rest: Any, **options: Any) -> Any:
        calls.append(call)
        return await run(call, *rest, **options)

    monkeypatch.setattr(pool, "run", run_counted)


async def test_small_events_come_with_the_hint_and_need_no_query(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    record = await claimed(store)
    reader = Reader(other, record.id)
    await caught_up(reader, 2)
    # The first event of an epoch is read, because only the store knows that the log has what the reader has.
    await append(store, record.id, record.epoch, 3, TokenEvent("first"))
    await caught_up(reader, 3)
    queries: list[object] = []
    for pool in (other._following, other.connections):
        count_calls(pool, queries, monkeypatch)
    tokens = ["two words", " +01890000 *3:x ", "* 7", "é 日本\n", "\u2028", ""]
    for position, token in enumerate(tokens, start=4):
        await append(store, record.id, record.epoch, position, TokenEvent(token))
        await reader.has(position)  # A second hint while the first one is being sent would have no events.
    await append(store, record.id, record.epoch, 10, TokenEvent("a"), TokenEvent("b"))
    await reader.has(11)
    assert queries == []
    assert reader.seen == await whole_log(store, record.id)


async def test_large_events_are_read_after_the_hint(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    record = await claimed(store)
    reader = Reader(other, record.id)
    await caught_up(reader, 2)
    await append(store, record.id, record.epoch, 3, TokenEvent("long " * 20_000))
    await append(store, record.id, record.epoch, 4, TokenEvent("short"))
    await reader.has(4)
    assert reader.seen == await whole_log(store, record.id)


async def test_events_of_a_hint_that_do_not_follow_are_read(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    hints = other._notifier._hints
    assert hints is not None
    record = await claimed(store)
    reader = Reader(other, record.id)
    await caught_up(reader, 2)
    watcher = Watcher(other, record.id)
    received = hints._received
    lost = asyncio.Event()
    monkeypatch.setattr(hints, "_received", lambda hints: lost.set())
    await append(store, record.id, record.epoch, 3, TokenEvent("its hint is lost"))
    async with asyncio.timeout(BOUND):
        await lost.wait()
    monkeypatch.setattr(hints, "_received", received)
    await append(store, record.id, record.epoch, 4, TokenEvent("its hint is not"))
    await reader.has(4)
    assert [position for events in watcher.wakes for position in positions(events)] == [3, 4]
    assert reader.seen == await whole_log(store, record.id)


async def watched_elsewhere(store: PostgresStore, other: PostgresStore, turn_id: str) -> Watcher:
    """Watch a turn in one process, and return when the other one knows."""
    await listening(store)
    watcher = Watcher(other, turn_id)
    await until_notified(store, turn_id, lambda: turn_id in store._notifier._elsewhere)
    return watcher


async def sent_hints(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that the hints of a process are added to."""
    await listening(store)
    hints, sent = store._notifier._hints, list[str]()
    assert hints is not None
    send = hints.send
    monkeypatch.setattr(hints, "send", lambda hint, events="": sent.append(hint) or send(hint, events))
    return sent


async def test_commit_that_no_other_process_watches_is_not_told(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listening(other)
    sent = await sent_hints(store, monkeypatch)
    alone, shared = await claimed(store), await claimed(store)
    Reader(store, alone.id)
    await watched_elsewhere(store, other, shared.id)
    for record in (alone, shared):
        await append(store, record.id, record.epoch, 3, TokenEvent("text"))
    assert [hint for hint in sent if hint.startswith("+")] == [f"+{shared.id}"]


async def test_commits_before_another_process_watches_are_told_when_it_does(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader may have read the log just before a commit, and be known to its writer just after."""
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    await listening(store)
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, TokenEvent("not told"))
    watcher = await watched_elsewhere(store, other, record.id)
    await watcher.until(lambda: bool(watcher.wakes))


async def test_process_that_missed_hints_asks_what_the_others_watch(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    record = await claimed(store)
    await watched_elsewhere(store, other, record.id)
    store._notifier._elsewhere.clear()
    store._notifier._on_listening()
    await until_notified(store, record.id, lambda: record.id in store._notifier._elsewhere)


async def test_watch_that_is_not_repeated_is_forgotten(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_FORGET_SECONDS", -1.0)
    record = await claimed(store)
    await watched_elsewhere(store, other, record.id)
    store._notifier._tend_watches()
    assert record.id not in store._notifier._elsewhere


async def test_hint_with_events_begins_as_one_without(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of an older version takes `+` and the turn's id for the whole hint, and ignores the rest."""
    await listening(other)
    hints = other._notifier._hints
    assert hints is not None
    record = await claimed(store)
    received: list[str] = []
    has_come = asyncio.Event()

    def receive(hints: Sequence[str]) -> None:
        received.extend(hints)
        if f"+{record.id}" in received:
            has_come.set()

    await watched_elsewhere(store, other, record.id)
    monkeypatch.setattr(hints, "_received", receive)
    await append(store, record.id, record.epoch, 3, TokenEvent("two words"))
    async with asyncio.timeout(BOUND):
        await has_come.wait()
    index = received.index(f"+{record.id}")
    assert received[index + 1].startswith("*3:")
    assert {hint[0] for hint in received} <= {"+", "=", "*"}


async def test_hints_wake_watchers_of_sessions_work_and_commands(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", NEVER)
    await listening(other)
    await other.renew("theirs")
    session_id = await new_session_id(store)
    session, work, commands = Watcher(other, session_id), Watcher(other, RUNNABLE), Watcher(other, "theirs")
    record = await started(store, session_id=session_id)
    await session.until(lambda: bool(session.wakes))
    await work.until(lambda: bool(work.wakes))
    await other.claim(record.id, "theirs")
    await store.command(Command(record.id, "requested"))
    await commands.until(lambda: bool(commands.wakes))


async def test_lost_hint_is_made_up_for_by_polling(
    processes: Processes, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening connection is silently dead: it is open, but nothing comes through."""
    monkeypatch.setattr(notifications, "SAFETY_SECONDS", 0.3)
    async with proxied(shared_databases().server.folder) as proxy:
        proxy.break_at(b"LISTEN", "go silent")
        direct, processes.url = processes.url, proxy.url(processes.database)
        deaf = await processes.join()
        processes.url = direct
        async with asyncio.timeout(BOUND):
            await proxy.happened.wait()
        session_id = await new_session_id(store)
        record = await claimed(store, session_id=session_id)
        await deaf.renew("deaf")
        reader, session = Reader(deaf, record.id), Watcher(deaf, session_id)
        await reader.has(2)
        await append(store, record.id, record.epoch, 3, TokenEvent("unheard"))
        await reader.has(3)
        await started(store, session_id=session_id)
        await session.until(lambda: bool(session.wakes))
        await write(store, await store.claim(record.id, "worker"), end="completed")
        await reader.has(4)
        assert reader.seen == await whole_log(store, record.id)
        work = Watcher(deaf, RUNNABLE)
        await work.until(lambda: bool(work.wakes))


async def test_store_without_hints_polls_and_does_not_listen(processes: Processes) -> None:
    first, second = await processes.join(hints=False), await processes.join(hints=False)
    await second.renew("theirs")
    reader_of_all = asyncio.create_task(followed(second, (record := await claimed(first)).id))
    commands = Watcher(second, "theirs")
    for position in range(3, 6):
        await append(first, record.id, record.epoch, position, TokenEvent(str(position)))
    await append(first, record.id, record.epoch, 6, done(record), end=True)
    assert positions(await reader_of_all) == list(range(1, 7))
    running = await claimed(second, "theirs")
    await first.command(Command(running.id, "requested"))
    await commands.until(lambda: bool(commands.wakes))
    listeners = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    assert processes.fetchval(listeners) == 0


async def test_rewound_log_wakes_its_readers_and_is_refused(processes: Processes, store: PostgresStore) -> None:
    """As after a failover to a standby that was behind: the log is shorter, and then has other events."""
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, TokenEvent("a"))
    await append(store, record.id, record.epoch, 4, TokenEvent("lost"))
    assert await store.read(record.id, 4, 10, record.epoch) == []
    watcher = Watcher(store, record.id)
    assert await store.read(record.id, 4, 10, record.epoch) == []
    processes.fetchval("DELETE FROM turnwire.event WHERE last_position = 4")
    processes.fetchval("UPDATE turnwire.head SET last_position = 3")
    await watcher.until(lambda: () in watcher.wakes)
    with pytest.raises(LogRewoundError):
        await store.read(record.id, 4, 10, record.epoch)
    assert texts(await store.read(record.id, 2, 10, 0)) == ["a"]
    again = await store.claim(record.id, "worker")
    await append(store, again.id, again.epoch, 4, TokenEvent("another"), TokenEvent("fifth"))
    with pytest.raises(LogRewoundError):
        await store.read(record.id, 4, 10, record.epoch)
    assert texts(await store.read(record.id, 4, 10, again.epoch)) == ["fifth"]


async def test_reader_of_a_turn_sealed_meanwhile_misses_nothing(store: PostgresStore, other: PostgresStore) -> None:
    record = await claimed(store)
    reader = Reader(other, record.id)
    await reader.has(2)
    await write(store, record, *[TokenEvent(str(number)) for number in range(50)], end="completed")
    await store.maintain(expire_before=0)
    await reader.has(53)
    assert positions(reader.seen) == list(range(1, 54))


async def test_ended_turn_is_read_by_every_process(store: PostgresStore, other: PostgresStore) -> None:
    record = await ended(store, *[TokenEvent(str(number)) for number in range(300)])
    assert await followed(other, record.id) == await whole_log(store, record.id)
    assert await other.turn_state(record.id) == await store.turn_state(record.id)


def test_payloads_stay_below_the_limit_of_the_server() -> None:
    hints = [f"+{number:036}" for number in range(1_000)]
    joined = payloads(hints)
    assert all(len(payload) < 8_000 for payload in joined)
    assert " ".join(joined).split(" ") == hints
    assert payloads([]) == []
