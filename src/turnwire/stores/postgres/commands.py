"""What somebody wants of a turn, and who reads it: from whatever process, to whichever runs it."""

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

from turnwire.core.contracts import RUNNABLE, Command
from turnwire.core.errors import TurnEndedError, TurnNotFoundError
from turnwire.stores.postgres.connections import Connection, Connections
from turnwire.stores.postgres.following import Hub
from turnwire.stores.postgres.parts import NOW, Part

# The head is held for the moment, so that a turn cannot end between the look and the command, which would stay behind.
_COMMAND = """
    WITH wanted AS (
        SELECT id, worker FROM turnwire.head WHERE id = $1 FOR KEY SHARE
    ), filed AS (
        INSERT INTO turnwire.command (turn_id, kind, reason) SELECT id, $2, $3 FROM wanted ON CONFLICT DO NOTHING
    )
    SELECT worker FROM wanted
"""


class Commanding(Part):
    def __init__(self, connections: Connections, hub: Hub, lease: float, clock: Callable[[], float] | None) -> None:
        super().__init__(connections, hub, lease, clock)
        self._attending = WeakValueDictionary[str, asyncio.Lock]()

    async def command(self, command: Command) -> None:
        async def call(connection: Connection, again: bool) -> str | None:
            row = await connection.fetchrow(_COMMAND, command.turn_id, command.kind, command.reason)
            if row is not None:
                return row[0]
            query = "SELECT 1 FROM turnwire.turn WHERE id = $1"
            if await connection.fetchval(query, command.turn_id):
                raise TurnEndedError(command.turn_id)
            raise TurnNotFoundError(command.turn_id)

        self._hub.happened(await self._run(call) or RUNNABLE)

    async def commands(self, worker: str) -> list[Command]:
        query = """
            SELECT c.turn_id, c.reason, c.kind FROM turnwire.command c JOIN turnwire.head h ON h.id = c.turn_id
            WHERE h.worker = $1 OR h.worker IS NULL ORDER BY h.number
        """
        rows = await self._run(lambda connection, _: connection.fetch(query, worker))
        return [Command(turn_id, reason, kind) for turn_id, reason, kind in rows]

    async def attend(self, turn_id: str, worker: str, *, present: bool) -> bool:
        if present:
            change = (
                "INSERT INTO turnwire.attendance (turn_id, worker)"
                " SELECT id, $2 FROM turnwire.head WHERE id = $1 FOR KEY SHARE ON CONFLICT DO NOTHING"
            )
        else:
            change = "DELETE FROM turnwire.attendance WHERE turn_id = $1 AND worker = $2"
        query = f"""
            SELECT EXISTS (SELECT 1 FROM turnwire.attendance a JOIN turnwire.worker w ON w.id = a.worker
            WHERE a.turn_id = $2 AND w.lease_until > {NOW})
        """

        async def call(connection: Connection, again: bool) -> bool:
            async with connection.transaction():
                await connection.execute(change, turn_id, worker)
                return await connection.fetchval(query, self._now(), turn_id)

        # In the order they are told: a reader may come and be gone in one moment, over two connections.
        lock = self._attending.setdefault(turn_id, asyncio.Lock())
        async with lock:
            return await self._run(call)
