"""Who runs which turn. The folder's lock makes this process the only one, so memory decides, and the disk follows."""

import sqlite3
from collections import Counter
from contextlib import suppress

from msgspec.structs import replace

from turnwire.core.codec import now_ms
from turnwire.core.contracts import Command, Worker
from turnwire.core.errors import TurnEndedError, TurnNotFoundError, TurnNotWaitingError
from turnwire.core.turns import Phase, TurnRecord, TurnState
from turnwire.stores.rules import Leases, ReadyQueue, Watchers, check_free
from turnwire.stores.sqlite import queries
from turnwire.stores.sqlite.live_turn import LiveTurn
from turnwire.stores.sqlite.registry import SqliteRegistry

# What is asked about turns; for those of this process, memory knows it best.


class Queries(SqliteRegistry):
    _live: dict[str, LiveTurn]

    async def find_turn(self, principal: str, turn_id: str) -> TurnRecord:
        live = self._live.get(turn_id)
        if live is None or live.record.principal != principal:
            record = await self._read(lambda connection: queries.find_turn(connection, turn_id, principal))
            return self._fresh(record)
        return live.current()

    async def list_turns(self, principal: str, *, session_id: str | None = None, limit: int = 50) -> list[TurnRecord]:
        query = (
            f"SELECT {queries.TURN_COLUMNS} FROM turn WHERE principal = ? AND (? IS NULL OR session_id = ?)"
            " ORDER BY number DESC LIMIT ?"
        )
        values = (principal, session_id, session_id, limit)
        rows = await self._read(lambda connection: connection.execute(query, values).fetchall())
        return [self._fresh(queries.turn_from(row)) for row in reversed(rows)]

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None:
        query = (
            f"SELECT {queries.TURN_COLUMNS} FROM turn WHERE session_id = ?"
            # Ids grow with time, so the place of one that was deleted is known all the same.
            " AND number > coalesce((SELECT number FROM turn WHERE id = ?),"
            " (SELECT max(number) FROM turn WHERE session_id = ? AND id < ?), 0) ORDER BY number LIMIT 1"
        )
        values = (session_id, after_turn_id, session_id, after_turn_id)
        row = await self._read(lambda connection: connection.execute(query, values).fetchone())
        return self._fresh(queries.turn_from(row)) if row else None

    def _fresh(self, record: TurnRecord) -> TurnRecord:
        live = self._live.get(record.id)
        return live.current() if live else record

    async def history(self, turn_id: str, limit: int) -> list[TurnState]:
        query = """
            WITH RECURSIVE chain (id, parent, state, depth, found) AS (
                SELECT id, parent_turn_id, NULL, 0, 0 FROM turn WHERE id = ?
                UNION ALL
                SELECT turn.id, turn.parent_turn_id, turn.state, depth + 1, found + (turn.state IS NOT NULL)
                FROM chain JOIN turn ON turn.id = chain.parent WHERE found < ?
            )
            SELECT state FROM chain WHERE state IS NOT NULL ORDER BY depth DESC
        """
        if (live := self._live.get(turn_id)) and live.record.parent_turn_id is None:
            return []
        rows = await self._read(lambda connection: connection.execute(query, (turn_id, limit)).fetchall())
        return [state for row in rows if (state := queries.state_from(row[0]))]

    async def turn_state(self, turn_id: str) -> TurnState | None:
        query = "SELECT state FROM turn WHERE id = ?"
        row = await self._read(lambda connection: connection.execute(query, (turn_id,)).fetchone())
        if row is None:
            raise TurnNotFoundError(turn_id)
        return queries.state_from(row[0])

    async def tokens_used(self, principal: str, day: int) -> int:
        query = "SELECT tokens FROM spending WHERE principal = ? AND day = ?"
        row = await self._read(lambda connection: connection.execute(query, (principal, day)).fetchone())
        return row[0] if row else 0


class Claims(Queries):
    _leases: Leases
    _lineup: ReadyQueue
    _watchers: Watchers

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        live = await self._find_live(turn_id)
        await self._write_claims([self._claim(live, worker)])
        return live.current()

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        turns = [self._live[turn_id] for turn_id in self._lineup.ready(limit)]
        if turns:
            await self._write_claims([self._claim(live, worker) for live in turns])
        return [live.current() for live in turns]

    async def take_over(self, worker: str) -> list[TurnRecord]:
        lost = [
            live
            for live in self._live.values()
            if live.record.phase == "running" and not live.head.ended and not self._leases.holds(live.record.worker)
        ]
        taken: list[TurnRecord] = []
        for live in lost:
            # It may end while the ones before it are claimed.
            with suppress(TurnEndedError, TurnNotFoundError):
                taken.append(await self.claim(live.record.id, worker))
        return taken

    async def _find_live(self, turn_id: str) -> LiveTurn:
        live = self._live.get(turn_id)
        if live is None:
            await self._read(lambda connection: queries.find_turn(connection, turn_id))
            raise TurnEndedError(turn_id)
        return live

    def _claim(self, live: LiveTurn, worker: str) -> LiveTurn:
        check_free(live.record, worker, self._leases)
        epoch = live.head.claim(worker)
        started_at = live.record.started_at or now_ms()
        live.record = replace(live.record, phase="running", worker=worker, epoch=epoch, started_at=started_at)
        self._lineup.take(live.record.id)
        return live

    async def _write_claims(self, turns: list[LiveTurn]) -> None:
        query = "UPDATE turn SET phase = 'running', worker = ?, epoch = ?, started_at = ? WHERE number = ?"
        rows = [(live.record.worker, live.record.epoch, live.record.started_at, live.number) for live in turns]
        await self._write(lambda connection: connection.executemany(query, rows))

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        live = self._live.get(turn_id)
        if live is None or live.record.phase != "waiting" or live.head.ended:
            await self._read(lambda connection: queries.find_turn(connection, turn_id))
            raise TurnNotWaitingError(turn_id)
        epoch = live.head.claim(worker)
        live.record = replace(live.record, epoch=epoch)
        query = "UPDATE turn SET epoch = ? WHERE number = ?"
        await self._write(lambda connection: connection.execute(query, (epoch, live.number)))
        return live.current()

    async def checkpoint(self, turn_id: str) -> bytes:
        query = "SELECT body FROM checkpoint WHERE turn = (SELECT number FROM turn WHERE id = ?)"
        row = await self._read(lambda connection: connection.execute(query, (turn_id,)).fetchone())
        return row[0] if row else b""

    async def queued(self) -> list[TurnRecord]:
        return self._in_phase("queued")

    async def waiting(self, until: int | None = None) -> list[TurnRecord]:
        return [turn for turn in self._in_phase("waiting") if until is None or (turn.waiting_until or 0) <= until]

    def _in_phase(self, phase: Phase) -> list[TurnRecord]:
        return [live.current() for live in self._live.values() if live.record.phase == phase]

    async def unfinished(self, session_id: str) -> list[TurnRecord]:
        return [self._live[turn_id].current() for turn_id in self._lineup.unfinished(session_id)]

    async def under_way(self, principal: str | None, limit: int) -> list[TurnRecord]:
        live = [one for one in self._live.values() if one.record.phase != "ended"]
        return [one.current() for one in live if principal in (None, one.record.principal)][:limit]

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        self._leases.renew(worker, name, draining)

    async def retire(self, worker: str) -> None:
        self._leases.retire(worker)

    async def workers(self) -> list[Worker]:
        return self._leases.workers(Counter(turn.worker for turn in self._in_phase("running")))

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        return self._leases.attend(turn_id, worker, present)

    async def command(self, command: Command) -> None:
        live = await self._find_live(command.turn_id)
        if live.record.phase == "ended":
            raise TurnEndedError(command.turn_id)
        await self._write(lambda connection: write_command(connection, live.number, command))
        self._take_command(live, command)

    def _take_command(self, live: LiveTurn, command: Command) -> None:
        if live.record.phase != "ended":
            live.command = live.command or command
            self._watchers.notify(live.record.worker or "", ())

    async def commands(self, worker: str) -> list[Command]:
        return [
            live.command
            for live in self._live.values()
            if live.command is not None and live.record.phase != "ended" and live.record.worker in (None, worker)
        ]


def write_command(connection: sqlite3.Connection, number: int, command: Command) -> None:
    # The turn may have ended since it was looked up; its command would stay for ever.
    query = "INSERT OR IGNORE INTO command SELECT number, ?, ? FROM turn WHERE number = ? AND phase <> 'ended'"
    connection.execute(query, (command.kind, command.reason, number))
