"""The SQLite store beyond the contract: its file, its folder, its one writer, and a full disk."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.turns import (
    BOUND,
    append,
    claimed,
    done,
    ended,
    followed,
    positions,
    started,
    texts,
    types,
    whole_log,
    write,
)
from tests.core.desk import Gate, echo, open_desk
from tests.stores.full_disk import check_full_disk
from turnwire.core.contracts.stores import AppendRequest, UnfinishedFilter
from turnwire.core.errors import EventsGoneError, StoreError, StoreUnusableError, TurnNotFoundError
from turnwire.core.log.codec import log_event
from turnwire.core.log.events import DoneEvent, TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import Turn
from turnwire.core.people.budget import Limits
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.sqlite import SqliteArchive, SqliteStore
from turnwire.stores.sqlite.disk import BALLAST_BYTES, BALLAST_NAME, Ballast, is_locked
from turnwire.stores.sqlite.schema import DATABASE_NAME, newest_version
from turnwire.stores.sqlite.writer import Work

ROOT = Path(__file__).parents[2]
FAR_FUTURE = 2**45


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    await store.open()
    yield store
    await store.close()


def rows(folder: Path, table: str) -> int:
    connection = sqlite3.connect(folder / DATABASE_NAME)
    try:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        connection.close()


def writer_connection(store: SqliteStore) -> sqlite3.Connection:
    assert isinstance(store._threads, SqliteThreads)
    (connection,) = store._threads._connections
    return connection


@contextmanager
def locked(store: SqliteStore) -> Iterator[None]:
    """Keep the database locked for longer than the writer waits."""
    writer_connection(store).execute("PRAGMA busy_timeout = 50")
    blocker = sqlite3.connect(store._folder / DATABASE_NAME, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()
        assert isinstance(store._threads, SqliteThreads)
        if not store._threads.is_closed:
            writer_connection(store).execute("PRAGMA busy_timeout = 5000")


async def unusable(folder: Path) -> str:
    """Return why the store cannot be opened there."""
    with pytest.raises(StoreUnusableError) as refused:
        await SqliteStore(folder).open()
    return str(refused.value)


# Opening


async def test_reopened_store_has_the_same_logs(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on the way"
    store = SqliteStore(folder)
    await store.open()
    records = [await ended(store), await claimed(store), await started(store)]
    await store.maintain(expire_before=0)
    logs = [await whole_log(store, record.id) for record in records]
    await store.close()
    store = SqliteStore(folder)
    await store.open()
    assert [await whole_log(store, record.id) for record in records] == logs
    await store.close()


async def test_turn_of_a_lost_worker_is_claimed_as_soon_as_the_store_is_open(tmp_path: Path) -> None:
    lost = SqliteStore(tmp_path)
    await lost.open()
    await lost.renew("lost")
    record = await claimed(lost, "lost")
    await lost.close()
    store = SqliteStore(tmp_path)
    await store.open()
    # The lost worker's lease has not run out, but only its own process could have renewed it.
    async with open_desk(store, echo) as desk:
        assert await store.unfinished(where=UnfinishedFilter(worker="lost")) == []
        end = (await desk.events(record))[-1]
    assert end == DoneEvent("interrupted", record.session_id, record.id, reason="worker_lost")
    await store.close()


async def test_database_of_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    newer = newest_version() + 1
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {newer}")
    connection.close()
    before = path.read_bytes()
    text = await unusable(tmp_path)
    assert str(path) in text
    assert f"newer Turnwire (schema {newer}" in text
    assert "upgrade" in text
    assert path.read_bytes() == before
    assert not is_locked(tmp_path)
    with pytest.raises(StoreUnusableError, match="newer Turnwire"):
        SqliteArchive(tmp_path)


async def test_file_that_is_no_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    path.write_bytes(b"a letter to my aunt, " * 100)
    assert "not a SQLite database" in await unusable(tmp_path)
    assert path.read_bytes().startswith(b"a letter")
    assert not is_locked(tmp_path)


async def test_damaged_file_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    for _ in range(20):
        await started(store, message="x" * 2_000)
    await store.close()
    path = tmp_path / DATABASE_NAME
    body = bytearray(path.read_bytes())
    for page in range(1, len(body) // 4_096):
        body[page * 4_096 : page * 4_096 + 200] = b"\xff" * 200
    path.write_bytes(body)
    assert str(path) in await unusable(tmp_path)
    assert not is_locked(tmp_path)


async def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    assert "give another --data folder" in await unusable(tmp_path / "data")


async def test_archive_of_an_empty_folder_is_refused_and_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError, match="no such file"):
        SqliteArchive(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
async def test_second_writer_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    assert "another turnwire server is using it" in await unusable(tmp_path)
    code = "import asyncio, sys, pathlib; from turnwire.stores.sqlite import SqliteStore; "
    code += "asyncio.run(SqliteStore(pathlib.Path(sys.argv[1])).open())"
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), stderr=subprocess.PIPE, cwd=ROOT
    )
    async with asyncio.timeout(BOUND):
        _, errors = await other.communicate()
    assert other.returncode == 1
    assert b"another turnwire server is using it" in errors
    await ended(store)  # The first store still works.


async def test_closed_store_releases_the_folder_lock(tmp_path: Path) -> None:
    for _ in range(3):
        store = SqliteStore(tmp_path)
        await store.open()
        assert is_locked(tmp_path)
        await store.close()
        assert not is_locked(tmp_path)


# Writing


def count_transactions(statements: list[str]) -> int:
    """Count the transactions of a connection; a statement outside of BEGIN and COMMIT is one of its own."""
    count, is_open = 0, False
    for statement in statements:
        count += not is_open
        is_open = statement != "COMMIT" and (is_open or statement.startswith("BEGIN"))
    return count


async def test_store_whose_last_commit_fails_is_closed_all_the_same(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    await store.open()
    with locked(store), pytest.raises(StoreError):
        await store.close()
    second = SqliteStore(tmp_path)
    await second.open()
    await second.close()


async def test_appends_of_many_turns_at_once_are_one_transaction(store: SqliteStore, tmp_path: Path) -> None:
    records = [await claimed(store) for _ in range(30)]
    before = rows(tmp_path, "event")
    statements: list[str] = []
    writer_connection(store).set_trace_callback(statements.append)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*(append(store, r.id, r.epoch, 3, TokenEvent("a"), TokenEvent("b")) for r in records))
    writer_connection(store).set_trace_callback(None)
    assert count_transactions(statements) == 1
    assert rows(tmp_path, "event") == before + 30


async def test_appends_of_one_turn_at_once_are_one_row(store: SqliteStore, tmp_path: Path) -> None:
    record = await claimed(store)
    log = TurnLog(store, record, Limits())
    before = rows(tmp_path, "event")
    for number in range(100):
        log.append(TokenEvent(str(number)))
    await log.end("completed")
    assert rows(tmp_path, "event") == before + 1
    assert positions(await whole_log(store, record.id)) == list(range(1, 104))


async def test_appends_during_a_commit_are_one_next_commit(store: SqliteStore) -> None:
    record = await claimed(store)
    statements: list[str] = []
    writer_connection(store).set_trace_callback(statements.append)
    held, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(held.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(BOUND)

    slow = store._writer.write(hold)
    async with asyncio.timeout(BOUND):
        await held.wait()
        later = [
            asyncio.create_task(append(store, record.id, record.epoch, position, TokenEvent(str(position))))
            for position in range(3, 203)
        ]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(slow, *later)
    writer_connection(store).set_trace_callback(None)
    assert count_transactions(statements) == 2
    assert positions(await whole_log(store, record.id)) == list(range(1, 203))


async def test_failed_write_does_not_fail_the_group(store: SqliteStore) -> None:
    record = await claimed(store)
    notice = "INSERT INTO outbox (turn_id, due_at, attempts) VALUES ('no such turn', 0, 0)"
    async with asyncio.timeout(BOUND):
        refused, _ = await asyncio.gather(
            store._writer.write(lambda connection: connection.execute(notice)),
            append(store, record.id, record.epoch, 3, TokenEvent("in the same moment")),
            return_exceptions=True,
        )
    assert isinstance(refused, StoreError)
    assert texts(await whole_log(store, record.id)) == ["in the same moment"]


async def test_failed_commit_leaves_the_turn_as_it_was(store: SqliteStore) -> None:
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, TokenEvent("before"))
    with locked(store), pytest.raises(StoreError):
        await append(store, record.id, record.epoch, 4, done(record), end=True)
    assert positions(await whole_log(store, record.id)) == [1, 2, 3]
    assert (await store.find_turn("ann", record.id)).phase == "running"
    await append(store, record.id, record.epoch, 4, done(record), end=True)
    assert types(await whole_log(store, record.id))[2:] == ["token", "done"]


async def test_writes_during_a_failed_commit_never_start_a_second_group(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers may write again in the callback of a failure; a second group could leave a gap in a log."""
    pending = peak = 0
    submit, committed = store._writer._submit, store._writer._committed

    def count_submit(group: Sequence[Work]) -> None:
        nonlocal pending, peak
        pending += 1
        peak = max(peak, pending)
        submit(group)

    def count_committed(group: Sequence[Work], error: StoreError | None) -> None:
        nonlocal pending
        pending -= 1
        committed(group, error)

    first, second = await claimed(store), await claimed(store)
    monkeypatch.setattr(store._writer, "_submit", count_submit)
    monkeypatch.setattr(store._writer, "_committed", count_committed)
    token = log_event(TokenEvent("again"), 3, 1)
    failed, failed_again = asyncio.Event(), asyncio.Event()

    def write_again(count: int, error: object) -> None:
        store.append(AppendRequest(first.id, first.epoch, [token], lambda count, error: None))

    def gather_again(count: int, error: object) -> None:
        failed.set()
        store.append(AppendRequest(second.id, second.epoch, [token], lambda count, error: failed_again.set()))

    async with asyncio.timeout(BOUND):
        with locked(store):
            store.append(AppendRequest(first.id, first.epoch, [token], write_again))
            store.append(AppendRequest(second.id, second.epoch, [token], gather_again))
            await failed.wait()
            await asyncio.sleep(0)
            more = store._writer.write(lambda connection: None)
            await failed_again.wait()
        await asyncio.wait([more])
    more.exception()
    assert peak == 1
    await ended(store)


async def test_commit_counts_if_the_write_ahead_log_cannot_be_emptied_after_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = await ended(store)
    record = await claimed(store)
    attempts: list[sqlite3.Connection] = []
    empty = store._writer._empty_write_ahead_log

    def fail_once(connection: sqlite3.Connection) -> None:
        attempts.append(connection)
        if len(attempts) == 1:
            raise sqlite3.DatabaseError("the disk cannot be read")
        empty(connection)

    monkeypatch.setattr(store._writer, "_empty_write_ahead_log", fail_once)
    await store.delete_turn("ann", earlier.id)
    await append(store, record.id, record.epoch, 3, TokenEvent("written"))
    await append(store, record.id, record.epoch, 4, done(record), end=True)
    assert len(attempts) == 2
    assert positions(await whole_log(store, record.id)) == [1, 2, 3, 4]


# Sealing and erasing


async def test_journal_is_trimmed_when_its_turns_are_sealed(store: SqliteStore, tmp_path: Path) -> None:
    for _ in range(5):
        await ended(store)
    running = await claimed(store)
    await append(store, running.id, running.epoch, 3, TokenEvent("a"))
    await ended(store)
    assert rows(tmp_path, "sealed_log") == 0
    await store.maintain(expire_before=0)
    assert rows(tmp_path, "sealed_log") == 6
    assert rows(tmp_path, "event") == 2, "the rows of the running turn"
    await append(store, running.id, running.epoch, 4, done(running), end=True)
    await store.maintain(expire_before=0)
    assert rows(tmp_path, "event") == 0
    assert rows(tmp_path, "sealed_log") == 7
    assert types(await whole_log(store, running.id)) == ["session", "message", "token", "done"]
    assert store._turns.by_id == {}


@pytest.mark.parametrize("sealed", [False, True])
async def test_deleted_text_is_nowhere_in_the_folder(tmp_path: Path, sealed: bool) -> None:
    secret = "the-password-is-hunter2"
    store = SqliteStore(tmp_path)
    await store.open()
    record = await ended(store, *[TokenEvent(f"{secret} {number} ") for number in range(200)], message=secret)
    other = await ended(store, TokenEvent("nothing special"))
    await store.delete_session("ann", (await ended(store)).session_id)
    if sealed:
        await store.maintain(expire_before=0)
    await store.delete_session("ann", record.session_id)
    await store.close()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in content
    store = SqliteStore(tmp_path)
    await store.open()
    assert texts(await whole_log(store, other.id)) == ["nothing special"]
    await store.close()


# Reading from another process


async def test_archive_reads_turns_of_every_phase(store: SqliteStore, tmp_path: Path) -> None:
    sealed, expired, live = await ended(store), await ended(store), await ended(store)
    await store.maintain(expire_before=0)
    running, queued = await claimed(store), await started(store)
    await write(store, running, TokenEvent("a"))
    archive = SqliteArchive(tmp_path)
    for record in (sealed, expired, live, running, queued):
        log = await whole_log(store, record.id)
        for after in range(len(log) + 1):
            assert await archive.read(record.id, after, 2) == log[after : after + 2]
        assert archive.turn(record.id).last_position == len(log)
        assert await archive.turn_state(record.id) == await store.turn_state(record.id)
    listed = archive.newest_turns(3)
    assert [(record.id, record.last_position) for record in listed[:2]] == [(queued.id, 2), (running.id, 3)]
    await store.maintain(expire_before=FAR_FUTURE)
    with pytest.raises(EventsGoneError):
        await archive.read(expired.id, 0, 10)
    with pytest.raises(TurnNotFoundError):
        await archive.read("nothing", 0, 10)
    archive.close()


READER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from turnwire.core.log.follow import follow
from turnwire.sqlite_threads import SqliteThreads
from turnwire.stores.sqlite import SqliteArchive

async def main():
    archive = SqliteArchive(Path(sys.argv[1]))
    async for events in follow(archive, sys.argv[2]):
        for logged in events:
            print(logged.position, logged.body.decode(), flush=True)
    archive.close()

asyncio.run(main())
"""


@pytest.mark.process
async def test_archive_in_another_process_follows_a_running_turn(store: SqliteStore, tmp_path: Path) -> None:
    record = await claimed(store)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, str(tmp_path), record.id, stdout=subprocess.PIPE
    )
    assert reader.stdout is not None
    async with asyncio.timeout(BOUND):
        for _ in range(2):
            await reader.stdout.readline()
        for position in range(3, 8):
            # The other process reads each event before this one writes the next.
            (logged,) = await append(store, record.id, record.epoch, position, TokenEvent(f"piece {position}"))
            assert await reader.stdout.readline() == b"%d %b\n" % (position, logged.body)
        await store.maintain(expire_before=0)
        await append(store, record.id, record.epoch, 8, done(record), end=True)
        assert (await reader.stdout.read()).startswith(b'8 {"type":"done"')
        assert await reader.wait() == 0


async def test_archive_follows_on_after_an_error_of_its_poll(store: SqliteStore, tmp_path: Path) -> None:
    class Failing:
        """A connection whose first polls fail."""

        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection
            self.failed = asyncio.Event()

        def execute(self, query: str, *values: Any) -> sqlite3.Cursor:
            if query == "PRAGMA data_version" and not self.failed.is_set():
                self.failed.set()
                raise sqlite3.OperationalError("disk I/O error")
            return self.connection.execute(query, *values)

    record = await claimed(store)
    archive = SqliteArchive(tmp_path)
    archive._connection = failing = Failing(archive._connection)  # type: ignore[assignment]
    following = asyncio.create_task(followed(archive, record.id))
    async with asyncio.timeout(BOUND):
        await failing.failed.wait()
    await append(store, record.id, record.epoch, 3, done(record), end=True)
    assert positions(await following) == [1, 2, 3]
    archive._connection = failing.connection
    archive.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from tests.contracts.turns import append, claimed
from turnwire.core.log.events import TokenEvent
from turnwire.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    record = await claimed(store)
    print(record.id, flush=True)
    for position in range(3, 1_000_000):
        token = TokenEvent(str(position))
        await append(store, record.id, record.epoch, position, token, on_commit=lambda: print(position, flush=True))

asyncio.run(main())
"""


@pytest.mark.process
async def test_killed_process_loses_no_published_event(tmp_path: Path) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(tmp_path), stdout=subprocess.PIPE, cwd=ROOT
    )
    assert writer.stdout is not None
    async with asyncio.timeout(BOUND):
        turn_id = (await writer.stdout.readline()).decode().strip()
        for _ in range(50):
            await writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        published = (await writer.stdout.read()).splitlines()
        await writer.wait()
    last_published = int(published[-1]) if published else 52
    store = SqliteStore(tmp_path)
    await store.open()
    log = await whole_log(store, turn_id, page=1_000)
    assert positions(log) == list(range(1, len(log) + 1))
    assert len(log) >= last_published
    (orphan,) = await store.take_over("next")
    assert orphan.last_position == len(log)
    await store.close()


# The disk


def test_ballast_occupies_real_blocks_and_is_restored(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path)
    assert ballast.restore()
    stat = (tmp_path / BALLAST_NAME).stat()
    assert stat.st_size == BALLAST_BYTES
    assert stat.st_blocks * 512 >= BALLAST_BYTES, "deleting a sparse file frees nothing"
    ballast.drop()
    assert not (tmp_path / BALLAST_NAME).exists()
    ballast.drop()
    (tmp_path / BALLAST_NAME).write_bytes(b"cut short")
    assert ballast.restore()
    assert (tmp_path / BALLAST_NAME).stat().st_size == BALLAST_BYTES


def test_ballast_is_written_once_by_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ballast, written, flush = Ballast(tmp_path), list[int](), os.fsync

    def count(number: int) -> None:
        written.append(number)
        flush(number)

    monkeypatch.setattr(os, "fsync", count)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ballast.restore, [0] * 8))
    assert len(written) == 1


async def test_full_disk_ends_running_turns_and_refuses_new_ones(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated disk the database may not grow, except a little when the ballast is dropped."""
    max_pages = 2**31 - 2
    drop, restore = Ballast.drop, Ballast.restore
    is_full = False

    def limit(pages: int) -> None:
        writer_connection(store).execute(f"PRAGMA max_page_count = {pages}")

    def fill() -> None:
        nonlocal is_full
        is_full = True
        limit(writer_connection(store).execute("PRAGMA page_count").fetchone()[0])

    def make_room() -> None:
        nonlocal is_full
        is_full = False
        limit(max_pages)

    def drop_and_make_room(ballast: Ballast) -> None:
        drop(ballast)
        limit(writer_connection(store).execute("PRAGMA page_count").fetchone()[0] + 1_000)

    monkeypatch.setattr(Ballast, "drop", drop_and_make_room)
    monkeypatch.setattr(Ballast, "restore", lambda ballast, turns=0: not is_full and restore(ballast, turns))
    await check_full_disk(store, fill, make_room)


async def test_full_disk_refuses_waiting_appends_but_takes_endings(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ballast is for endings: tokens that were appended before the disk was full must not use it up."""
    ending, talking = await claimed(store), await claimed(store)
    monkeypatch.setattr(Ballast, "restore", lambda ballast, turns=0: False)
    held, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fill_slowly(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(held.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(BOUND)
        store._writer.is_full = True

    filling = store._writer.write(fill_slowly)
    async with asyncio.timeout(BOUND):
        await held.wait()
        waiting = [
            asyncio.create_task(append(store, talking.id, talking.epoch, 3, TokenEvent("a"))),
            asyncio.create_task(append(store, talking.id, talking.epoch, 4, TokenEvent("b"), done(talking), end=True)),
            asyncio.create_task(append(store, ending.id, ending.epoch, 3, done(ending), end=True)),
        ]
        await asyncio.sleep(0)
        go_on.set()
        await filling
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["StoreFullError", "PositionError", "list"]
    assert types(await whole_log(store, ending.id))[-1] == "done"
    assert positions(await whole_log(store, talking.id)) == [1, 2]
    await append(store, talking.id, talking.epoch, 3, done(talking, "failed"), end=True)
    store._writer.is_full = False


async def test_full_disk_ends_all_running_turns_whatever_their_size(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserve has room for the ends of all turns, and the states are written when there is room again."""
    limit = writer_connection(store).execute
    drop = Ballast.drop

    def drop_and_make_room(ballast: Ballast) -> None:
        drop(ballast)
        limit(f"PRAGMA max_page_count = {limit('PRAGMA page_count').fetchone()[0] + 1_000}")

    monkeypatch.setattr(Ballast, "drop", drop_and_make_room)
    monkeypatch.setattr(Ballast, "restore", lambda ballast, turns=0: False)
    gate = Gate()

    async def chatty(turn: Turn) -> AsyncIterator[str]:
        for _ in range(3):
            yield "x" * 100_000
        await gate.wait()
        yield "more" * 50_000

    async with open_desk(store, chatty) as desk:
        turns = [await desk.start() for _ in range(40)]
        for turn in turns:
            await followed(store, turn.id, count=5)
        limit(f"PRAGMA max_page_count = {limit('PRAGMA page_count').fetchone()[0]}")
        gate.open()
        assert {(await desk.end(turn)).outcome for turn in turns} == {"failed"}
        state = await store.turn_state(turns[0].id)
        assert state is not None
        assert (state.outcome, len(state.text)) == ("failed", 300_000)

        limit("PRAGMA max_page_count = 2147483646")
        monkeypatch.setattr(Ballast, "restore", lambda ballast, turns=0: True)
        following = await desk.start(session_id=turns[0].session_id)
        assert [state.outcome for state in await store.history(following.id, 5)] == ["failed"]
        assert (await desk.end(following)).outcome == "completed"
    (answer,) = limit("SELECT folded_answer FROM turn WHERE id = ?", (turns[0].id,)).fetchone()
    assert len(answer) == 300_000


async def test_ballast_grows_with_the_number_of_running_turns(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path)
    assert ballast.covers(500)
    assert not ballast.covers(1_000)
    assert ballast.restore(1_000)
    assert ballast.covers(1_000)
    assert (tmp_path / BALLAST_NAME).stat().st_size == 2 * BALLAST_BYTES


async def test_turn_that_ends_while_the_database_is_locked_ends_after_it(store: SqliteStore) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "half"
        await gate.wait()
        yield " whole"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        following = await desk.start("next", session_id=turn.session_id)
        await followed(store, turn.id, count=3)
        with locked(store):
            gate.open()
            failures = 0
            while failures < 3:
                with pytest.raises(StoreError):
                    await store._writer.flush()
                failures += 1
            assert len(desk.runner.worker.running) == 1
        assert (await desk.end(turn)).outcome == "failed"
        assert (await desk.end(following)).outcome == "completed"


async def test_claim_that_could_not_be_written_is_written_with_the_next_append(
    store: SqliteStore, tmp_path: Path
) -> None:
    """Otherwise a turn with events would be queued after a crash, and its agent would begin again."""
    record = await started(store)
    await store.renew("worker")
    with locked(store):
        (claim,) = await store.claim_next("worker", 1)
        with pytest.raises(StoreError):
            await store._writer.flush()
    await append(store, record.id, claim.epoch, 3, TokenEvent("a"))
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as reader:
        row = reader.execute("SELECT phase, worker, epoch FROM turn WHERE id = ?", (record.id,)).fetchone()
    assert row == ("running", "worker", claim.epoch)


async def test_deletion_beside_an_open_reader_does_not_hold_up_commits(store: SqliteStore, tmp_path: Path) -> None:
    """Deleted events leave the write-ahead log after the reader has gone."""
    record = await ended(store, TokenEvent("a-secret-word"))
    other = await claimed(store)
    write_ahead_log = tmp_path / f"{DATABASE_NAME}-wal"
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM turn").fetchone()
        writer_connection(store).execute(f"PRAGMA busy_timeout = {int(BOUND * 2_000)}")
        await store.delete_turn("ann", record.id)
        # If the checkpoint waited for the reader, this would not be committed within the bound.
        await append(store, other.id, other.epoch, 3, TokenEvent("a"))
        assert b"a-secret-word" in write_ahead_log.read_bytes()
    store._writer._erase_after = 0.0
    await append(store, other.id, other.epoch, 4, TokenEvent("b"))
    await store._writer.flush()
    assert b"a-secret-word" not in write_ahead_log.read_bytes()
    assert b"a-secret-word" not in (tmp_path / DATABASE_NAME).read_bytes()


async def test_waiting_turn_keeps_no_rows_of_other_turns(store: SqliteStore, tmp_path: Path) -> None:
    waiting = await claimed(store)
    log = TurnLog(store, waiting, Limits())
    log.append(TokenEvent("may I?"))
    await log.suspend(FAR_FUTURE)
    others = [await ended(store, TokenEvent("x" * 100)) for _ in range(20)]
    running = await claimed(store)
    logs = [await whole_log(store, turn.id) for turn in (waiting, *others, running)]
    await store.maintain(expire_before=0)
    assert rows(tmp_path, "event") == 3
    await append(store, running.id, running.epoch, 3, TokenEvent("on"))
    await store.maintain(expire_before=0)
    assert rows(tmp_path, "event") == 4
    assert [await whole_log(store, turn.id) for turn in (waiting, *others)] == logs[:-1]


def _isolated(command: str, folder: Path) -> list[str]:
    """Return a command line that runs a shell command in a mount namespace of its own."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--mount", "sh", "-ec", command, "sh", str(folder), sys.executable]


def _can_mount(folder: str = "/tmp") -> bool:
    try:
        trial = _isolated('mount -t tmpfs tmpfs "$1"', Path(folder))
        return subprocess.run(trial, capture_output=True, timeout=BOUND, check=False).returncode == 0
    except OSError:
        return False


if _can_mount():
    # Only where file systems can be mounted; the simulated disk above runs everywhere.

    async def run_isolated(command: str, folder: Path) -> str:
        process = await asyncio.create_subprocess_exec(
            *_isolated(command, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
        )
        async with asyncio.timeout(4 * BOUND):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    @pytest.mark.process
    async def test_full_tmpfs_ends_running_turns_and_refuses_new_ones(tmp_path: Path) -> None:
        mount = 'mount -t tmpfs -o size=16m tmpfs "$1"'
        await run_isolated(f'{mount}; exec "$2" -m tests.stores.full_disk "$1"', tmp_path)

    OPEN = """
import asyncio, sys
from pathlib import Path
from typing import Any
from turnwire.core.errors import StoreUnusableError
from turnwire.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    try:
        await store.open()
    except StoreUnusableError as error:
        print("refused:", error)
    else:
        await store.close()
        print("opened")

asyncio.run(main())
"""

    @pytest.mark.process
    async def test_read_only_disk_is_refused_with_advice(tmp_path: Path) -> None:
        (tmp_path / "open.py").write_text(OPEN)
        (tmp_path / "disk").mkdir()
        steps = (
            'mount -t tmpfs tmpfs "$1/disk"',
            '"$2" "$1/open.py" "$1/disk/data"',
            'mount -o remount,ro "$1/disk"',
            '"$2" "$1/open.py" "$1/disk/data"',
            '"$2" "$1/open.py" "$1/disk/new"',
        )
        opened, existing, new = (await run_isolated("; ".join(steps), tmp_path)).splitlines()
        assert opened == "opened"
        for refused in (existing, new):
            assert refused.startswith("refused: cannot use ")
            assert "ead-only" in refused
            assert "another --data folder" in refused


async def test_reader_from_the_middle_reads_the_journal(store: SqliteStore) -> None:
    """The log has more events than the store keeps in memory; it is read from the borders of its rows."""
    record = await claimed(store)
    for first in range(3, 603, 50):
        await append(store, record.id, record.epoch, first, *[TokenEvent(str(n)) for n in range(first, first + 50)])
    await append(store, record.id, record.epoch, 603, done(record), end=True)
    log = await whole_log(store, record.id, page=1_000)
    assert positions(log) == list(range(1, 604))
    for after in (0, 2, 51, 52, 53, 300, 474, 475, 476, 600, 602):
        assert await followed(store, record.id, after) == log[after:]
        assert await whole_log(store, record.id, after, page=7) == log[after:]
