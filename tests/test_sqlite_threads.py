"""The SQLite thread wrapper: order, cancellation, closing."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from turnwire.sqlite_threads import SqliteThreads

BOUND = 60.0


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS entry (text TEXT)")
    return connection


@pytest.fixture
async def threads(tmp_path: Path) -> AsyncIterator[SqliteThreads]:
    threads = SqliteThreads(lambda: connect(tmp_path / "test.db"), name="test")
    yield threads
    await threads.close()


def insert(connection: sqlite3.Connection, text: str) -> None:
    connection.execute("INSERT INTO entry VALUES (?)", (text,))


def entries(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT text FROM entry ORDER BY rowid")]


async def test_calls_run_in_order_on_one_thread_that_is_not_the_caller(threads: SqliteThreads) -> None:
    names: list[str] = []

    def note(connection: sqlite3.Connection, text: str) -> None:
        names.append(threading.current_thread().name)
        insert(connection, text)

    await asyncio.gather(*(threads.run(lambda connection, text=text: note(connection, text)) for text in "abcde"))
    assert await threads.run(entries) == list("abcde")
    assert set(names) == {"test_0"}


async def test_cancelled_call_is_dropped_if_it_has_not_begun(threads: SqliteThreads) -> None:
    begun, release = asyncio.Event(), threading.Event()
    loop, reads = asyncio.get_running_loop(), list[str]()

    def block(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert release.wait(BOUND)

    blocking = threads.run(block)
    async with asyncio.timeout(BOUND):
        await begun.wait()
    # It is queued behind the call that blocks the thread when it is cancelled.
    read = threads.run(lambda connection: reads.append("read"))
    read.cancel()
    await asyncio.wait([read])
    release.set()
    await blocking
    assert await threads.run(entries) == []
    assert reads == []


async def test_submitted_call_runs_without_being_awaited(threads: SqliteThreads) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    threads.submit(lambda connection: insert(connection, "posted"), done.set_result)
    assert await threads.run(entries) == ["posted"]
    async with asyncio.timeout(BOUND):
        await done


async def test_several_threads_have_a_connection_each(tmp_path: Path) -> None:
    threads = SqliteThreads(lambda: connect(tmp_path / "test.db"), name="test", threads=2)
    meeting = threading.Barrier(2)

    def meet(connection: sqlite3.Connection) -> int:
        meeting.wait(BOUND)
        return id(connection)

    first, second = await asyncio.gather(threads.run(meet), threads.run(meet))
    assert first != second
    await threads.close()


async def test_close_finishes_earlier_calls_and_refuses_later_ones(tmp_path: Path) -> None:
    threads = SqliteThreads(lambda: connect(tmp_path / "test.db"), name="test")
    for text in "abc":
        threads.submit(lambda connection, text=text: insert(connection, text), lambda _: None)
    await threads.close()
    await threads.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await threads.run(entries)
    with connect(tmp_path / "test.db") as connection:
        assert entries(connection) == ["a", "b", "c"]
    connection.close()
