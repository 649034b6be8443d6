"""The memory store, for tests and throw-away demos: the SQLite store on a database in memory."""

import time
from collections.abc import Callable

from turnwire.sqlite_threads import InlineSqlite
from turnwire.stores.rules import Leases
from turnwire.stores.sqlite.live_turn import LiveTurns
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

    def __init__(
        self,
        lost: "MemoryStore | None" = None,
        *,
        lease: float = 10,
        clock: Callable[[], float] = time.monotonic,
        keeps_outbox: bool = False,
        notes_waits: bool = False,
        seal_key: bytes | None = None,
        commit_interval: float = _COMMIT_INTERVAL,
    ) -> None:
        self.connection = lost.connection if lost else open_memory()
        inline = InlineSqlite(self.connection)
        super().__init__(
            inline,
            inline,
            inline,
            None,
            LiveTurns(Leases(lease, clock), keeps_logs=True),
            keeps_outbox=keeps_outbox,
            notes_waits=notes_waits,
            interval=commit_interval,
        )
        self.seal_key = seal_key
        self.max_whole_logs = _MAX_WHOLE_LOGS
        if lost:
            self._turns.adopt(lost._turns)

    async def open(self) -> None:
        """Do nothing: the store is open."""

    async def close(self) -> None:
        await self._writer.flush()
