"""Reads of logs and turns: live turns from memory, all others from the database."""

from collections.abc import Callable

from turnwire.core.contracts.stores import AppendRequest, UnfinishedFilter, Wake
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.stores.lines import event_page
from turnwire.stores.rules import read_with_epoch
from turnwire.stores.sqlite.database import SqliteParts
from turnwire.stores.sqlite.rows import read_rows, read_turn
from turnwire.stores.turns import StoredTurns


class SqliteQueries(SqliteParts, StoredTurns):
    """The reads that know of live turns."""

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        if epoch is not None and after:
            return await read_with_epoch(self.read, turn_id, after, limit, epoch)
        live = self._turns.by_id.get(turn_id)
        if live is not None:
            recent = live.recent(after, limit)
            if recent is not None:
                return event_page(recent, limit)
            rows = live.rows_after(after, limit)
            events = await self.readers.run(lambda connection: read_rows(connection, rows, after))
            if events is not None:
                return event_page(events, limit)
        return await self.readers.run(
            lambda connection: read_turn(connection, self._sealed_logs, turn_id, after, limit)
        )

    def append(self, request: AppendRequest) -> None:
        self._writer.append(request)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._turns.watchers.add(key, wake)

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        live = self._turns.by_id.get(turn_id)
        if live is not None and live.record.principal == principal:
            return live.current()
        return await super().find_turn(principal, turn_id)

    async def unfinished(
        self, session_id: str | None = None, *, where: UnfinishedFilter | None = None, limit: int = 1_000_000
    ) -> list[TurnRecord]:
        if session_id is None:
            turns = [live for live in self._turns.by_id.values() if live.record.phase != "ended"]
        else:
            turns = [self._turns.by_id[turn_id] for turn_id in self._turns.queue.unfinished(session_id)]
        return [live.current() for live in turns if where is None or where.matches(live.record)][:limit]

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        if (live := self._turns.by_id.get(turn_id)) and live.record.parent_turn_id is None:
            return []
        return await super().history(turn_id, limit)

    async def turn_state(self, turn_id: str) -> TurnState | None:
        state = await super().turn_state(turn_id)
        live = self._turns.by_id.get(turn_id)
        if state is None and live is not None and live.record.phase == "ended":
            return (await fold_log(self, turn_id)).state()  # It ended while the disk was full.
        return state

    def _forget_turn(self, record: TurnRecord) -> None:
        self._turns.forget_turn(record)
