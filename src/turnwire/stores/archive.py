"""Reading along: access to logs from outside the servers that write them, in both databases."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from turnwire.core.contracts.stores import Wake
from turnwire.core.errors import TurnNotFoundError
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.database import Row
from turnwire.stores.rows import RECORD, TURN, comparable, record_from
from turnwire.stores.rules import Watchers


class Archive(ABC):
    """The turns of all principals: access to the database is access to all of them. It polls for changes."""

    poll_seconds: float

    def __init__(self) -> None:
        self._watchers = Watchers()
        self._poll: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()

    def turn(self, turn_id: str) -> TurnRecord:
        """Return a turn by its id. Raises TurnNotFoundError."""
        records = self._records("WHERE t.id = $1", comparable(turn_id))
        if not records:
            raise TurnNotFoundError(turn_id)
        return records[0]

    def match_ids(self, part: str) -> list[str]:
        """Return the ids of the turns that begin or end with `part`, newest first."""
        is_part = "substr(id, 1, length($1)) = $1 OR substr(id, length(id) - length($1) + 1) = $1"
        query = f"SELECT id FROM turnwire.turn WHERE {is_part} ORDER BY number DESC"
        return [row[0] for row in self._fetch(query, comparable(part))]

    def newest_turns(self, limit: int) -> list[TurnRecord]:
        """Return the newest turns, newest first."""
        return self._records("ORDER BY t.number DESC LIMIT $1", limit)

    def unfinished_turns(self, limit: int) -> list[TurnRecord]:
        """Return the unfinished turns, oldest first."""
        return self._records("WHERE h.id IS NOT NULL ORDER BY t.number LIMIT $1", limit)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        if self._poll is None:
            self._poll = asyncio.create_task(self._poll_changes())
        return self._watchers.add(key, wake)

    async def _poll_changes(self) -> None:
        while True:
            if self._may_have_changed():
                self._watchers.notify_all()
            await asyncio.sleep(self.poll_seconds)

    def _may_have_changed(self) -> bool:
        return True

    def _records(self, rest: str, *values: object) -> list[TurnRecord]:
        """Return turns; `rest` is the end of the query."""
        return [record_from(row) for row in self._fetch(f"SELECT {RECORD} FROM {TURN} {rest}", *values)]

    @abstractmethod
    def _fetch(self, query: str, *values: object) -> list[Row]: ...
