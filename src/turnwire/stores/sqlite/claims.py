"""Claims, leases, commands and readers: decided in memory, written to the database afterwards."""

import asyncio
import logging
import sqlite3
from collections import Counter
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from turnwire.core.contracts.stores import Command, Worker
from turnwire.core.errors import TurnEndedError, TurnNotFoundError, TurnNotWaitingError, TurnTakenError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.sqlite.database import SqliteParts
from turnwire.stores.sqlite.live_turn import LiveTurn
from turnwire.stores.sqlite.writer import WRITE_CLAIM, claim_values

logger = logging.getLogger("turnwire.stores.sqlite")


class SqliteClaims(SqliteParts):
    """Claims and commands, decided in memory."""

    async def claim(self, turn_id: str, worker: str) -> TurnRecord:
        live = await self._find_live(turn_id)
        await self._write_claims([self._claim(live, worker)])
        return live.current()

    async def claim_next(self, worker: str, limit: int) -> list[TurnRecord]:
        turns = [self._turns.by_id[turn_id] for turn_id in self._turns.queue.ready(limit)]
        if turns:
            # Not waited for: whatever these claims write is committed after them, or with them.
            self._write_claims([self._claim(live, worker) for live in turns])
        return [live.current() for live in turns]

    async def take_over(self, worker: str) -> list[TurnRecord]:
        running = [
            live for live in self._turns.by_id.values() if live.record.phase == "running" and not live.head.ended
        ]
        lost = [live for live in running if not self._turns.leases.holds(live.record.worker)]
        claimed: list[TurnRecord] = []
        for live in lost:
            # It may end while the ones before it are claimed.
            with suppress(TurnEndedError, TurnNotFoundError):
                claimed.append(await self.claim(live.record.id, worker))
        return claimed

    async def _find_live(self, turn_id: str) -> LiveTurn:
        """Return a turn that has not ended. Raises TurnEndedError, TurnNotFoundError."""
        live = self._turns.by_id.get(turn_id)
        if live is None:
            await self._check_exists(turn_id)
            raise TurnEndedError(turn_id)
        return live

    async def _check_exists(self, turn_id: str) -> None:
        query = "SELECT EXISTS (SELECT 1 FROM turn WHERE id = $1)"
        if not await self._database.read(lambda connection: connection.fetchval(query, turn_id)):
            raise TurnNotFoundError(turn_id)

    def _claim(self, live: LiveTurn, worker: str) -> LiveTurn:
        record, leases = live.record, self._turns.leases
        if record.phase == "running" and record.worker != worker and leases.holds(record.worker):
            raise TurnTakenError(record.id)
        epoch = live.head.claim()
        started_at = record.started_at or now_ms()
        live.record = replace(record, phase="running", worker=worker, epoch=epoch, started_at=started_at)
        self._turns.queue.take(record.id)
        return live

    def _write_claims(self, turns: list[LiveTurn]) -> "asyncio.Future[sqlite3.Cursor]":
        rows = [claim_values(live.record, live.number) for live in turns]
        written = self._writer.write(lambda connection: connection.executemany(WRITE_CLAIM, rows))
        # Before any later append of these turns is taken, since the loop calls this first.
        written.add_done_callback(partial(_note_claims, turns))
        return written

    async def hold(self, turn_id: str, worker: str) -> TurnRecord:
        live = self._turns.by_id.get(turn_id)
        if live is None or live.record.phase != "waiting" or live.head.ended:
            await self._check_exists(turn_id)
            raise TurnNotWaitingError(turn_id)
        epoch = live.head.claim()
        live.record = replace(live.record, epoch=epoch)
        query = "UPDATE turn SET epoch = ? WHERE number = ?"
        await self._writer.write(lambda connection: connection.execute(query, (epoch, live.number)))
        return live.current()

    async def renew(self, worker: str, *, name: str = "", draining: bool = False) -> None:
        self._turns.leases.renew(worker, name, draining)

    async def retire(self, worker: str) -> None:
        self._turns.leases.retire(worker)

    async def workers(self) -> list[Worker]:
        return self._turns.leases.workers(Counter(turn.worker for turn in self._turns.in_phase("running")))

    async def command(self, command: Command) -> None:
        live = await self._find_live(command.turn_id)
        if live.record.phase == "ended":
            raise TurnEndedError(command.turn_id)
        await self._writer.write(lambda connection: _insert_command(connection, command))
        self._turns.take_command(live, command)

    async def commands(self, worker: str) -> list[Command]:
        return [
            live.command
            for live in self._turns.by_id.values()
            if live.command is not None and live.record.phase != "ended" and live.record.worker in (None, worker)
        ]

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        return self._turns.leases.attend(turn_id, worker, present)


def _note_claims(turns: list[LiveTurn], claims: "asyncio.Future[sqlite3.Cursor]") -> None:
    error = None if claims.cancelled() else claims.exception()
    if error is not None:
        logger.error("claims could not be written: %s", error)
    for live in turns:
        live.has_unwritten_claim = error is not None


def _insert_command(connection: sqlite3.Connection, command: Command) -> None:
    # The turn may have ended since it was looked up; its command would stay for ever.
    query = "INSERT OR IGNORE INTO command SELECT id, ?, ? FROM head WHERE id = ?"
    connection.execute(query, (command.kind, command.reason, command.turn_id))
