"""Reads of logs and turns."""

import math
from collections.abc import Callable

from turnwire.core.contracts.stores import AppendRequest, UnfinishedFilter, Wake, is_short
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.postgres.database import PostgresParts
from turnwire.stores.postgres.rows import read_log
from turnwire.stores.rows import RECORD, UNFINISHED, record_from
from turnwire.stores.turns import StoredTurns


class PostgresQueries(PostgresParts, StoredTurns):
    """The log of a turn, and its readers."""

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        # A reader waits for as long as the database is away, without an error.
        events = await self.connections.run(
            lambda connection, _: read_log(connection, self._sealed_logs, turn_id, after, limit, epoch),
            retry_for=math.inf,
        )
        if is_short(events, limit):
            self._notifier.waits_at(turn_id, events[-1].position if events else after)
        return events

    def append(self, request: AppendRequest) -> None:
        self._writer.append(request)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._notifier.watch(key, wake)

    async def unfinished(
        self, session_id: str | None = None, *, where: UnfinishedFilter | None = None, limit: int = 1_000_000
    ) -> list[TurnRecord]:
        where = where or UnfinishedFilter()
        conditions, values = ["true"], list[object]([limit])
        for condition, value in (
            ("h.session_id = ${}", session_id),
            ("h.principal = ${}", where.principal),
            ("h.phase = ${}", where.phase),
            ("h.worker = ${}", where.worker),
            ("coalesce(h.waiting_until, 0) <= ${}", where.overdue_at),
            ("h.id <> ALL(${})", list(where.except_for) or None),
        ):
            if value is not None:
                values.append(value)
                conditions.append(condition.format(len(values)))
        query = f"SELECT {RECORD} FROM {UNFINISHED} WHERE {' AND '.join(conditions)} ORDER BY h.number LIMIT $1"
        return [record_from(row) for row in await self.connections.fetch(query, *values)]
