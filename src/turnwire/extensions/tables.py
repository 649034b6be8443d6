"""The tables of extensions in a database that all machines share."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from turnwire.core.errors import ShuttingDownError

if TYPE_CHECKING:
    # PostgreSQL is an extra.
    from turnwire.stores.postgres.leases import PostgresLeases
    from turnwire.stores.postgres.shared_database import BlockingConnection, SharedDatabase

T = TypeVar("T")

# By file of a data folder and by table in it: the table in the database, and the columns to copy. Deliveries get new
# numbers.
_JOURNAL = ("key", "channel_id", "user_id", "principal", "agent_id", "session", "text", "at", "turn_id", "answer")
_COPIED: dict[str, dict[str, tuple[str, Sequence[str]]]] = {
    "extensions.db": {
        "conversation": ("conversation", ("channel_id", "user_id", "number", "last_at")),
        "delivery": ("delivery", (*_JOURNAL, "delivered_at")),
    },
    "extensions/telegram/telegram.db": {
        "notes": ("telegram_notes", ("name", "value")),
        "updates": ("telegram_updates", ("update_id", "at")),
        "answers": (
            "telegram_answers",
            ("answer_id", "user_id", "state", "text", "stopped", "reply_to", "buttons", "at"),
        ),
        "parts": ("telegram_parts", ("answer_id", "number", "message_id", "sent_after", "shown")),
        "asks": ("telegram_asks", ("answer_id", "body", "at")),
        "paired": ("telegram_paired", ("user_id", "name", "at")),
    },
}


def copy_tables(folder: Path, database: "SharedDatabase") -> int:
    """Copy the records of the channels of a data folder to the shared database, and return the number of rows.

    Rows that are there already stay as they are. Raises StoreError, and sqlite3.Error for a file that cannot be read.
    """
    copied = 0
    for name, tables in _COPIED.items():
        if not (folder / name).exists():
            continue
        with closing(sqlite3.connect(f"file:{quote(str(folder / name))}?mode=ro", uri=True)) as source:
            for table, (target, columns) in tables.items():
                names = ", ".join(columns)
                rows = source.execute(f"SELECT {names} FROM {table} ORDER BY rowid").fetchall()
                marks = ", ".join("?" * len(columns))
                statement = f"INSERT INTO {target} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING RETURNING 1"
                copied += database.transaction(partial(_insert, statement, rows))
    return copied


def _insert(statement: str, rows: Sequence[Any], connection: "BlockingConnection") -> int:
    return sum(len(connection.execute(statement, row).fetchall()) for row in rows)


class SharedTables:
    """Transactions of one extension or of the kernel, in the order in which they were made, like `SqliteThreads`.

    A transaction for an extension whose lease another process has taken over is refused.
    """

    def __init__(self, database: "SharedDatabase", leases: "PostgresLeases", owner: str | None = None) -> None:
        """With `owner`, all transactions are for this extension."""
        self.is_closed = False
        self._database = database
        self._leases = leases
        self._owner = owner
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="turnwire-tables")

    async def open(self) -> None:
        """Open the database. Raises StoreUnusableError."""
        await asyncio.to_thread(self._database.open)

    def transaction(self, work: Callable[[Any], T], owner: str | None = None) -> asyncio.Future[T]:
        """Queue `work(connection)`: all that it writes is committed, or nothing if it raises.

        It runs to its end even if the caller is cancelled, and again if the connection is lost. Raises StoreError, and
        ShuttingDownError after `close` or if the extension runs in another process now.
        """
        if self.is_closed:
            raise ShuttingDownError
        name = self._owner or owner
        epoch = self._leases.epochs.get(name) if name is not None else None

        def fenced(connection: Any) -> T:
            if name is not None and epoch is not None:
                from turnwire.stores.postgres.leases import check_lease

                check_lease(connection, name, epoch)
            return work(connection)

        running = asyncio.get_running_loop().run_in_executor(self._executor, self._database.transaction, fenced)
        # The exception is retrieved here, because a caller that is cancelled leaves it.
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return asyncio.shield(running)

    async def close(self) -> None:
        """Finish the transactions that were made before. The database stays open for others."""
        self.is_closed = True
        await asyncio.to_thread(self._executor.shutdown)
