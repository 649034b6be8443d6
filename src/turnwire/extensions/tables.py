"""The tables of extensions in the store: those of the runtime, and those that an extension creates."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from turnwire.core.contracts.stores import NamedLeases, SqlConnection, TableStore
from turnwire.core.errors import ShuttingDownError
from turnwire.extensions.calls import Background

T = TypeVar("T")

TABLES = (
    """CREATE TABLE IF NOT EXISTS turnwire.extension_event (
        id BIGINT PRIMARY KEY, at BIGINT NOT NULL, topic TEXT NOT NULL, payload TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS turnwire.extension_subscription (
        name TEXT PRIMARY KEY, topic TEXT NOT NULL, last_event BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS turnwire.channel_conversation (
        channel_id TEXT NOT NULL, user_id TEXT NOT NULL, number BIGINT NOT NULL, last_at BIGINT NOT NULL,
        PRIMARY KEY (channel_id, user_id))""",
    """CREATE TABLE IF NOT EXISTS turnwire.channel_delivery (
        key TEXT PRIMARY KEY, number BIGINT NOT NULL, channel_id TEXT NOT NULL, user_id TEXT NOT NULL,
        principal TEXT NOT NULL, agent_id TEXT, session TEXT NOT NULL, text TEXT NOT NULL, at BIGINT NOT NULL,
        turn_id TEXT, answer TEXT, delivered_at BIGINT)""",
    "CREATE INDEX IF NOT EXISTS channel_delivery_by_number ON turnwire.channel_delivery (channel_id, number)",
)
"""The tables of the runtime: events and who has read them, the conversations of channels, and accepted messages until
their answers are delivered."""


class ExtensionTables:
    """The tables of one extension, or of the runtime, with transactions in the order in which they were made.

    They move with the extension to another machine, which its folder does not. See `TableStore` for the statements that
    every store understands. The names of the tables begin with the extension's id: `turnwire.notes_pages`.
    """

    def __init__(self, store: TableStore, leases: NamedLeases | None = None, owner: str | None = None) -> None:
        """With `owner`, all transactions are those of this extension."""
        self._store = store
        self._leases = leases
        self._owner = owner
        self._order = asyncio.Lock()
        self._background = Background()
        self._is_closed = False

    @property
    def is_shared(self) -> bool:
        return self._leases is not None

    async def create(self, *statements: str) -> None:
        """Run `CREATE … IF NOT EXISTS` statements. Raises StoreError."""
        await self._store.create_tables(statements)

    def transaction(self, work: Callable[[SqlConnection], Awaitable[T]], owner: str | None = None) -> asyncio.Future[T]:
        """Await `work(connection)`: all that it writes is committed, or nothing if it raises.

        The work awaits the connection alone. It is done even if the caller is cancelled, and done again if the
        connection is lost. Raises StoreError, and ShuttingDownError after `close` or if another process runs the
        extension now.
        """
        if self._is_closed:
            raise ShuttingDownError
        task = self._background.run(self._run(work, self._fence(self._owner or owner)))
        # The exception is retrieved here, because a caller that is cancelled leaves it.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return asyncio.shield(task)

    def _fence(self, name: str | None) -> Callable[[SqlConnection], Awaitable[None]] | None:
        """Return the check that this process still has the lease that it has now."""
        leases = self._leases
        if leases is None or name is None or (epoch := leases.epochs.get(name)) is None:
            return None
        return lambda connection: leases.check(connection, name, epoch)

    async def _run(
        self,
        work: Callable[[SqlConnection], Awaitable[T]],
        fence: Callable[[SqlConnection], Awaitable[None]] | None,
    ) -> T:
        async def fenced(connection: SqlConnection) -> T:
            if fence is not None:
                await fence(connection)
            return await work(connection)

        async with self._order:
            return await self._store.transaction(fenced)

    async def close(self) -> None:
        """Finish the transactions that were made before."""
        self._is_closed = True
        if self._background.tasks:
            await asyncio.wait(self._background.tasks)
