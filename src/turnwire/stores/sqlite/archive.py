"""Reading a data folder from another process, while its server runs or when it does not."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from turnwire.core.contracts import Wake
from turnwire.core.logged import LoggedEvent
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.guards import Watchers, read_known
from turnwire.stores.sqlite.reading import (
    TURN_COLUMNS,
    find_turn,
    read_turn,
    state_from,
    turn_from,
    with_position,
)
from turnwire.stores.sqlite.schema import DATABASE_NAME, open_reader

_POLL_SECONDS = 0.05


class SqliteArchive:
    """A `LogReader` over a file that somebody else writes. It asks SQLite now and then whether anything changed."""

    def __init__(self, folder: Path) -> None:
        self._connection: sqlite3.Connection = open_reader(folder / DATABASE_NAME)
        self._watchers = Watchers()
        self._poll: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
        self._connection.close()

    def find_turn(self, turn_id: str) -> TurnRecord:
        return find_turn(self._connection, turn_id)

    def list_turns(self, limit: int) -> list[TurnRecord]:
        """The newest turns of everybody, newest first: whoever can read the file can read them all."""
        query = f"SELECT {TURN_COLUMNS}, first_row, number FROM turn ORDER BY number DESC LIMIT ?"
        rows = self._connection.execute(query, (limit,)).fetchall()
        return [
            record if record.phase == "ended" else with_position(self._connection, record, row[-2], row[-1])
            for row in rows
            for record in (turn_from(row[:-2]),)
        ]

    def list_unfinished(self, limit: int) -> list[TurnRecord]:
        """The turns that run, wait or are queued, of everybody, oldest first."""
        query = f"SELECT {TURN_COLUMNS}, first_row, number FROM turn WHERE phase <> 'ended' ORDER BY number LIMIT ?"
        rows = self._connection.execute(query, (limit,)).fetchall()
        return [with_position(self._connection, turn_from(row[:-2]), row[-2], row[-1]) for row in rows]

    def has_keys(self) -> bool:
        return self._connection.execute("SELECT EXISTS (SELECT 1 FROM api_key)").fetchone()[0] == 1

    def check(self) -> str | None:
        """What SQLite finds wrong with the file."""
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        return None if found == "ok" else found

    def turn_state(self, turn_id: str) -> TurnState | None:
        row = self._connection.execute("SELECT state FROM turn WHERE id = ?", (turn_id,)).fetchone()
        return state_from(row[0]) if row else None

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_known(self, turn_id, after, limit, epoch)
        return read_turn(self._connection, turn_id, after, limit)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        if self._poll is None:
            self._poll = asyncio.create_task(self._poll_changes())
        return self._watchers.add(key, wake)

    async def _poll_changes(self) -> None:
        seen = None
        while True:
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                self._watchers.notify_all()
            await asyncio.sleep(_POLL_SECONDS)
