"""The connections to the server: a small pool that opens them when needed and drops them at the first sign of trouble.

Every call is retried until it is answered or its time is over. A connection that is lost in the middle of a call does
not say whether the call was carried out, so calls must be safe to repeat.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import StoreAwayError, StoreError, StoreFullError, StoreUnusableError, TurnwireError

T = TypeVar("T")
Row = Any
RETRY_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_COMMAND_SECONDS = 10.0
RETRY = Backoff(first=0.02, longest=1.0, factor=2.5, jitter=0.3)

_SETTINGS = {
    "application_name": "turnwire",
    # Compiling each of many small queries costs more than it saves.
    "jit": "off",
    # So that the server, too, notices when this process is gone, and releases its locks.
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# For queries that look up many rows by key: a plan that was made while the tables were empty must not scan them later.
BY_KEY = {f"enable_{method}": "off" for method in ("seqscan", "hashjoin", "mergejoin", "material")}
# For a query that runs hundreds of times a second, planning each run costs more than running it.
PLANNED_ONCE = {**BY_KEY, "plan_cache_mode": "force_generic_plan"}


# Errors of the driver, and their meaning

# SQLSTATE classes: lost connection, invalid transaction state (a standby), rollback, resources, not in the right state
# (a lock), operator intervention, system error, internal error.
_TRANSIENT_CLASSES = ("08", "25", "40", "53", "55", "57", "58", "XX")
DiskFull = asyncpg.DiskFullError
LockNotAvailable = asyncpg.LockNotAvailableError
NoPartition = asyncpg.CheckViolationError
Refused = asyncpg.PostgresError
"""The server has answered with an error."""
Unwritable = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
"""The data cannot be written, however often it is tried."""


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may well succeed a little later."""
    if isinstance(error, asyncpg.DiskFullError | asyncpg.DataError | asyncpg.UnsupportedClientFeatureError):
        return False
    if isinstance(error, asyncpg.PostgresError):
        state: str = getattr(error, "sqlstate", None) or ""
        return state[:2] in _TRANSIENT_CLASSES or isinstance(error, asyncpg.InvalidCachedStatementError)
    # The driver reports a connection that breaks in use in more than one way.
    return isinstance(error, OSError | TimeoutError | EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def reason(error: BaseException) -> str:
    """Return the first line of the message: the others may quote a user's text."""
    return str(error).partition("\n")[0] or type(error).__name__


def _translated(error: Exception) -> Exception:
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFullError()
    if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
        return StoreError(f"the database refused: {reason(error)}")
    return error


def unusable(location: str, error: BaseException) -> StoreUnusableError:
    """Return the error that says why the database cannot be opened, and what to do."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            why = f"{reason(error)}; check the user and the password in the database's URL"
        case asyncpg.InvalidCatalogNameError():
            why = f"{reason(error)}; make it with `createdb`, or name another in the database's URL"
        case asyncpg.InsufficientPrivilegeError():
            why = f"{reason(error)}; the user must own the schema `turnwire`, or may make it in this database"
        case _ if is_transient(error):
            why = f"it cannot be reached ({reason(error)}); check that PostgreSQL runs there and the URL is right"
        case _:
            why = reason(error)
    return StoreUnusableError(location, why)


class DatabaseConnection(SqlConnection, Protocol):
    """The methods of the driver's connections that are used; it has no types. A row is a tuple and a mapping."""

    async def execute(self, query: str, *values: object, timeout: float | None = None) -> str: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    async def close(self, *, timeout: float) -> None: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...


class ConnectionPool:
    """A pool of at most `size` connections, with retries.

    `behind_pooler` is for a pooler that gives every transaction another connection, such as PgBouncer. `settings` are
    server settings for each connection.
    """

    def __init__(
        self, url: str, size: int, *, behind_pooler: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self.location = describe(url)
        self.is_closed = False
        self._url = url
        self._behind_pooler = behind_pooler
        self._settings = {**_SETTINGS, **(settings or {})}
        self._free = asyncio.Semaphore(size)
        self._idle: list[DatabaseConnection] = []

    async def connect(self, **settings: str) -> DatabaseConnection:
        """Open a connection, which the caller closes. Raises the driver's errors."""
        if self._behind_pooler:
            options: dict[str, Any] = {"statement_cache_size": 0}
        else:
            # A standby may be behind.
            options = {"target_session_attrs": "read-write", "server_settings": self._settings | settings}
        driver: Any = asyncpg
        connection: DatabaseConnection = await driver.connect(
            self._url, timeout=_CONNECT_SECONDS, command_timeout=_COMMAND_SECONDS, **options
        )
        _keep_alive(connection)
        return connection

    async def run(
        self, call: Callable[[DatabaseConnection, bool], Awaitable[T]], retry_for: float = RETRY_SECONDS
    ) -> T:
        """Return the result of `call(connection, is_retry)`.

        Raises StoreAwayError if the database is away for longer than `retry_for` seconds, and what `call` raises.
        """
        end = time.monotonic() + retry_for
        failures = 0
        while True:
            try:
                return await self._try(call, failures > 0)
            except TurnwireError:
                raise
            except Exception as error:
                if not is_transient(error):
                    raise _translated(error) from error
                if self.is_closed or time.monotonic() > end:
                    raise StoreAwayError(reason(error)) from error
                if not isinstance(error, Refused):
                    # Whatever broke this connection has probably broken the idle ones too.
                    self._drop_idle()
            failures += 1
            await RETRY.wait(failures)

    async def fetch(self, query: str, *values: object) -> list[Row]:
        return await self.run(lambda connection, _: connection.fetch(query, *values))

    async def execute(self, query: str, *values: object) -> None:
        await self.run(lambda connection, _: connection.execute(query, *values))

    async def _try(self, call: Callable[[DatabaseConnection, bool], Awaitable[T]], is_retry: bool) -> T:
        async with self._free:
            connection = self._take_idle() or await self.connect()
            try:
                async with self.held(connection):
                    result = await call(connection, is_retry)
            except TurnwireError:
                self._give_back(connection)
                raise
            except BaseException:
                connection.terminate()
                raise
            self._give_back(connection)
            return result

    def _take_idle(self) -> DatabaseConnection | None:
        while self._idle:
            if not (connection := self._idle.pop()).is_closed():
                return connection
        return None

    def held(self, connection: DatabaseConnection) -> AbstractAsyncContextManager[object]:
        """Return a context in which a pooler keeps the connection, also between the two messages of a query."""
        return connection.transaction() if self._behind_pooler else nullcontext()

    def _give_back(self, connection: DatabaseConnection) -> None:
        if self.is_closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(connection)

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().terminate()

    async def close(self) -> None:
        self.is_closed = True
        while self._idle:
            await close_quietly(self._idle.pop())


async def close_quietly(connection: DatabaseConnection) -> None:
    with suppress(Exception):
        await connection.close(timeout=1)
    connection.terminate()


def describe(url: str) -> str:
    """Return where the database is, without the password."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2] or "the local socket"
    except ValueError:
        return "the PostgreSQL database"
    return f"the PostgreSQL database {parts.path.lstrip('/') or '(default)'} at {host}"


def _keep_alive(connection: DatabaseConnection) -> None:
    """Make the system notice when the server is gone."""
    driver: Any = connection
    sock: Any = driver._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
