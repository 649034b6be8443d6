"""Connections to the server: a few, made when they are needed, given up at the first sign of trouble.

Whatever is asked is asked again until it is answered or the patience for it is over, so it must be such that asking
twice does no harm: a connection that is lost in the middle does not say what has become of the question.
"""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from turnwire.core.errors import StoreAwayError, StoreError, StoreFullError, StoreUnusableError, TurnwireError

# What may go wrong with a database, in the driver's words, and what it means in ours.


# Lost connections, a server that starts or stops, deadlocks, no connection free, a standby, an internal error.
_PASSING = ("08", "25", "40", "53", "55", "57", "58", "XX")
DiskFull = asyncpg.DiskFullError
DriverError = asyncpg.PostgresError, asyncpg.InterfaceError
LockNotAvailable = asyncpg.LockNotAvailableError
NoPartition = asyncpg.CheckViolationError
Refused = asyncpg.PostgresError
"""The server has answered, and its answer is no."""
Unwritable = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
"""It is what was to be written that is wrong, and trying again would not change it."""


def is_passing(error: BaseException) -> bool:
    """Whether the same question may well be answered a little later."""
    if isinstance(error, asyncpg.DiskFullError | asyncpg.DataError | asyncpg.UnsupportedClientFeatureError):
        return False
    if isinstance(error, asyncpg.PostgresError):
        state: str = getattr(error, "sqlstate", None) or ""
        return state[:2] in _PASSING or isinstance(error, asyncpg.InvalidCachedStatementError)
    # The driver has more than one way to say that a connection broke while it was used.
    return isinstance(error, OSError | TimeoutError | EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def explained(error: Exception) -> TurnwireError | Exception:
    """The error in our words, if it is the database's."""
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFullError()
    if isinstance(error, DriverError):
        return StoreError(f"the database refused: {reason(error)}")
    return error


def reason(error: BaseException) -> str:
    """What is wrong, without a detail that might quote what somebody said."""
    return str(error).partition("\n")[0] or type(error).__name__


def unusable(place: str, error: BaseException) -> StoreUnusableError:
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            why = f"{reason(error)}; check the user and the password in the database's URL"
        case asyncpg.InvalidCatalogNameError():
            why = f"{reason(error)}; make it with `createdb`, or name another in the database's URL"
        case asyncpg.InsufficientPrivilegeError():
            why = f"{reason(error)}; the user must own the schema `turnwire`, or may make it in this database"
        case _ if is_passing(error):
            why = f"it cannot be reached ({reason(error)}); check that PostgreSQL runs there and the URL is right"
        case _:
            why = reason(error)
    return StoreUnusableError(place, why)


logger = logging.getLogger("turnwire.stores.postgres")

T = TypeVar("T")
Row = Any
PATIENCE_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_COMMAND_SECONDS = 10.0
_PAUSES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class DatabaseConnection(Protocol):
    """What is used of the driver's connections, which has no types of its own. A row is a tuple and a mapping."""

    async def fetch(self, query: str, *values: object) -> list[Row]: ...
    async def fetchrow(self, query: str, *values: object) -> Row | None: ...
    async def fetchval(self, query: str, *values: object) -> Any: ...
    async def execute(self, query: str, *values: object, timeout: float | None = None) -> str: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    async def close(self, *, timeout: float) -> None: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...


class Connections:
    """`behind_pooler` is for one that gives every transaction another connection, such as PgBouncer. `settings` are
    what the server is asked for with each connection.
    """

    def __init__(
        self, url: str, size: int, *, behind_pooler: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self.place = describe(url)
        self.is_closed = False
        self._url = url
        self._behind_pooler = behind_pooler
        self._settings = {**_SETTINGS, **(settings or {})}
        self._free = asyncio.Semaphore(size)
        self._idle: list[DatabaseConnection] = []

    async def connect(self, **settings: str) -> DatabaseConnection:
        """A new connection, which is the caller's to close. Raises what `is_passing` knows, or StoreUnusableError."""
        if self._behind_pooler:
            options: dict[str, Any] = {"statement_cache_size": 0}
        else:
            # A standby may be behind. What is planned and compiled anew for each of many small queries costs too much.
            options = {"target_session_attrs": "read-write", "server_settings": self._settings | settings}
        driver: Any = asyncpg
        connection: DatabaseConnection = await driver.connect(
            self._url, timeout=_CONNECT_SECONDS, command_timeout=_COMMAND_SECONDS, **options
        )
        _keep_alive(connection)
        return connection

    async def run(
        self, call: Callable[[DatabaseConnection, bool], Awaitable[T]], patience: float = PATIENCE_SECONDS
    ) -> T:
        """The answer of `call`, which is told whether it has been tried before.

        Raises StoreAwayError when the patience is over, and what `call` raises.
        """
        end = time.monotonic() + patience
        tries = 0
        while True:
            try:
                return await self._try(call, tries > 0)
            except TurnwireError:
                raise
            except Exception as error:
                if not is_passing(error):
                    raise explained(error) from error
                if self.is_closed or time.monotonic() > end:
                    raise StoreAwayError(reason(error)) from error
                if not isinstance(error, Refused):
                    # What has happened to one connection has happened to those that nobody was using.
                    self._drop_idle()
            await pause(tries)
            tries += 1

    async def _try(self, call: Callable[[DatabaseConnection, bool], Awaitable[T]], again: bool) -> T:
        async with self._free:
            connection = self._take_idle() or await self.connect()
            try:
                async with self.held(connection):
                    answer = await call(connection, again)
            except TurnwireError:
                self._give_back(connection)
                raise
            except BaseException:
                connection.terminate()
                raise
            self._give_back(connection)
            return answer

    def _take_idle(self) -> DatabaseConnection | None:
        while self._idle:
            if not (connection := self._idle.pop()).is_closed():
                return connection
        return None

    def held(self, connection: DatabaseConnection) -> AbstractAsyncContextManager[object]:
        """While it lasts, a pooler does not change the connection: not even between the two messages of a query."""
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
            await hang_up(self._idle.pop())


_SETTINGS = {
    "application_name": "turnwire",
    "jit": "off",
    # So that the server, too, notices when this process is gone, and lets go of what it had locked.
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# For queries that look many things up by their keys: a plan that was made while the tables were empty must not read all
# of them later.
BY_KEY = {f"enable_{way}": "off" for way in ("seqscan", "hashjoin", "mergejoin", "material")}
# Where the same question is asked some hundred times a second, planning it anew costs more than answering it.
PLANNED_ONCE = {**BY_KEY, "plan_cache_mode": "force_generic_plan"}


async def pause(tries: int) -> None:
    await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)] * random.uniform(0.7, 1.3))


async def hang_up(connection: DatabaseConnection) -> None:
    with suppress(Exception):
        await connection.close(timeout=1)
    connection.terminate()


def describe(url: str) -> str:
    """Where the database is, without the password."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2] or "the local socket"
    except ValueError:
        return "the PostgreSQL database"
    return f"the PostgreSQL database {parts.path.lstrip('/') or '(default)'} at {host}"


def _keep_alive(connection: DatabaseConnection) -> None:
    """Has the system notice when nobody is at the other end any more."""
    driver: Any = connection
    sock: Any = driver._transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
