"""SQLite connections on threads of their own, so that the event loop never waits for the disk; in memory, without."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
Call = Callable[[sqlite3.Connection], T]


class SqliteThreads:
    """A small pool of threads, each with one connection, opened by `connect` when the thread is first used.

    With one thread (the default), calls run in the order in which they were made. `connect` must pass
    `check_same_thread=False`, because `close` closes the connections from another thread.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, name: str, threads: int = 1) -> None:
        self._connect = connect
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.is_closed = False

    def run(self, call: Call[T]) -> asyncio.Future[T]:
        """Queue `call(connection)` at once, and return the future of its result.

        A cancelled caller drops a call that has not begun. Raises sqlite3.ProgrammingError after `close`.
        """
        self._check_open()
        return asyncio.get_running_loop().run_in_executor(self._executor, self._call, call)

    def submit(self, call: Call[T], then: Callable[[T], None]) -> None:
        """Queue a call that does not raise; its result is passed to `then` on the event loop.

        Raises sqlite3.ProgrammingError after `close`.
        """
        self._check_open()
        self._executor.submit(self._call_then, call, then, asyncio.get_running_loop())

    def _call_then(self, call: Call[T], then: Callable[[T], None], loop: asyncio.AbstractEventLoop) -> None:
        result = self._call(call)
        # If the loop is closed, nobody waits for the result any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(then, result)

    def _check_open(self) -> None:
        if self.is_closed:
            raise sqlite3.ProgrammingError("the database is closed")

    def _call(self, call: Call[T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            self._connections.append(connection)
        return call(connection)

    async def close(self) -> None:
        """Finish the calls that were made before, then close the connections. A second call does nothing."""
        self.is_closed = True
        await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """Do what `close` does, and block the calling thread meanwhile."""
        self.is_closed = True
        self._executor.shutdown()
        while self._connections:
            self._connections.pop().close()


class InlineSqlite:
    """One connection with the methods of `SqliteThreads`, whose calls run at once: for a database in memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, call: Call[T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._call_inline(call))
        except Exception as error:
            future.set_exception(error)
        return future

    def submit(self, call: Call[T], then: Callable[[T], None]) -> None:
        then(self._call_inline(call))

    def _call_inline(self, call: Call[T]) -> T:
        return call(self._connection)

    async def close(self) -> None:
        """Do nothing: the database is gone with its last user."""


SqliteRunner = SqliteThreads | InlineSqlite
