"""SQLite connections on threads of their own, so that the event loop never waits for the disk."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Call = Callable[[sqlite3.Connection], T]


class SqliteThreads:
    """A small pool of threads, each with one connection, opened by `connect` when the thread is first used.

    With one thread (the default), calls run in the order in which they were made. `connect` must pass
    `check_same_thread=False`, because `close` closes the connections from another thread, and `isolation_level=None`
    if `transaction` is used.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, name: str, threads: int = 1) -> None:
        self._connect = connect
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.is_closed = False

    async def open(self) -> None:
        """Open the first connection now. Raises what `connect` raises; without it, the first call does."""
        await self.run(lambda connection: None)

    def run(self, call: Call[T]) -> asyncio.Future[T]:
        """Queue `call(connection)` at once, and return the future of its result. Meant for reading.

        A cancelled caller drops a call that has not begun. Raises sqlite3.ProgrammingError after `close`.
        """
        self._check_open()
        return asyncio.get_running_loop().run_in_executor(self._executor, self._call, call)

    def transaction(self, call: Call[T]) -> asyncio.Future[T]:
        """Queue `call(connection)` in a transaction: all that it writes is committed, or nothing if it raises.

        The call runs to its end even if the caller is cancelled. Raises sqlite3.ProgrammingError after `close`.
        """
        return asyncio.shield(self.run(lambda connection: _commit(connection, call)))

    def submit(self, call: Call[T]) -> Future[T]:
        """Queue a call without waiting for it, and return the future of its result.

        An error is silent unless the future is read. Raises sqlite3.ProgrammingError after `close`.
        """
        self._check_open()
        return self._executor.submit(self._call, call)

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


def _commit(connection: sqlite3.Connection, call: Call[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = call(connection)
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite may have rolled it back itself, or left it open.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result
