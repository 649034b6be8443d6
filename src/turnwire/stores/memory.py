"""The memory store, for tests and throw-away demos: the SQLite store on a database in memory."""

from typing import Self, Unpack

from turnwire.core.contracts.stores import StoreOptions
from turnwire.settings import Settings
from turnwire.sqlite_threads import InlineSqlite
from turnwire.stores.sqlite.schema import open_memory
from turnwire.stores.sqlite.store import SqliteEngine

# Memory is all there is, so only the newest logs are kept whole; older ones keep their state.
_MAX_WHOLE_LOGS = 256
# Between two commits of a busy store. There is no disk to spare, so it only groups what arrives at once.
_COMMIT_INTERVAL = 0.001


class MemoryStore(SqliteEngine):
    """The `Store` of one process that keeps nothing. Its calls run at once, and never wait.

    The events of a turn are not written before its log is sealed. A test can lose a store, and open another on its data
    as a restarted process would.
    """

    def __init__(self, lost: "MemoryStore | None" = None, **options: Unpack[StoreOptions]) -> None:
        self.connection = lost.connection if lost else open_memory()
        inline = InlineSqlite(self.connection)
        super().__init__(inline, inline, inline, interval=_COMMIT_INTERVAL, keeps_logs=True, **options)
        self.max_whole_logs = _MAX_WHOLE_LOGS
        if lost:
            self._turns.adopt(lost._turns)

    @classmethod
    def build(cls, settings: Settings, **options: Unpack[StoreOptions]) -> Self:
        return cls(**options)

    async def open(self) -> None:
        """Do nothing: the store is open."""

    async def close(self) -> None:
        await self._writer.flush()
