"""The database for code that blocks: the document index, secrets, and commands.

They run in threads and make the calls that they make to SQLite. The driver is asynchronous, so an event loop in a
thread of its own serves all of them.
"""

import asyncio
import hmac
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import count
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from turnwire.core.contracts.stores import BlockingConnection
from turnwire.core.errors import StoreUnusableError
from turnwire.settings import Settings
from turnwire.stores.postgres.connections import ConnectionPool, DatabaseConnection
from turnwire.stores.postgres.database import database_url
from turnwire.stores.postgres.schema import check_version, open_database

T = TypeVar("T")
_CONNECTIONS = 4
_SECRET_BYTES = 32


class ThreadConnection:
    """The `BlockingConnection` of one transaction."""

    def __init__(self, connection: DatabaseConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop

    def execute(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        fetching = self._connection.fetch(_numbered(query), *values)
        return [tuple(row) for row in asyncio.run_coroutine_threadsafe(fetching, self._loop).result()]


@lru_cache(maxsize=512)
def _numbered(query: str) -> str:
    """Return the query with the driver's numbered placeholders."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", query)


class SharedDatabase:
    """The `BlockingDatabase` of processes that connect with the same URL.

    `behind_pooler` is for a pooler that gives every transaction another connection.
    """

    def __init__(self, url: str, *, connections: int = _CONNECTIONS, behind_pooler: bool = False) -> None:
        self._behind_pooler = behind_pooler
        self._password = (urlsplit(url).password or "").encode()
        self._connections = ConnectionPool(
            url, connections, behind_pooler=behind_pooler, settings={"search_path": "turnwire"}
        )
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix="turnwire-shared")
        self._opening = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def location(self) -> str:
        return self._connections.location

    @classmethod
    def build(cls, settings: Settings) -> Self:
        """Return the database at `database_url`. Raises StoreUnusableError."""
        return cls(database_url(settings), behind_pooler=not settings.database_hints)

    def open(self, *, migrate: bool = True) -> None:
        with self._opening:
            if self._loop is not None:
                return
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="turnwire-database", daemon=True)
            self._thread.start()
        try:
            self.run(lambda connections: open_database(connections, prepare=None if migrate else check_version))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._opening:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        self._executor.shutdown()
        asyncio.run_coroutine_threadsafe(self._connections.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def run(self, call: Callable[[ConnectionPool], Awaitable[T]]) -> T:
        """Return the result of `call(connections)`, which runs on the database's event loop."""

        async def awaited() -> T:
            return await call(self._connections)

        return asyncio.run_coroutine_threadsafe(awaited(), self._opened()).result()

    def transaction(self, work: Callable[[BlockingConnection], T]) -> T:
        loop = self._opened()

        async def call(connection: DatabaseConnection, is_retry: bool) -> T:
            async with connection.transaction():
                if self._behind_pooler:
                    await connection.execute("SET LOCAL search_path TO turnwire")
                return await loop.run_in_executor(self._executor, work, ThreadConnection(connection, loop))

        return self.run(lambda connections: connections.run(call))

    def secret(self, name: str) -> bytes:
        # Derived from a stored value and the password, so that a backup of the database alone does not reveal it.
        def write(connection: BlockingConnection) -> bytes:
            new = secrets.token_bytes(_SECRET_BYTES)
            connection.execute("INSERT INTO secret VALUES (?, ?) ON CONFLICT DO NOTHING", (name, new))
            return connection.execute("SELECT value FROM secret WHERE name = ?", (name,))[0][0]

        return hmac.digest(self._password, self.transaction(write), "sha256")

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise StoreUnusableError(self.location, "it is not open")
        return self._loop
