"""The one writer of this process: it commits in groups, as large as they come, with no timer.

While one group is under way the next one gathers. Nothing is told to anyone before the server has said that it is
committed. If the connection is lost before it says so, the logs themselves are asked what has become of the group:
so an event is neither written twice nor given up, and an agent merely waits.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from turnwire.core.contracts import RUNNABLE, Parking, Refusal, Settle
from turnwire.core.errors import (
    FencedError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    TurnNotFoundError,
    TurnwireError,
)
from turnwire.core.logged import LoggedEvent
from turnwire.core.turns import TurnState
from turnwire.stores.guards import Gatherers
from turnwire.stores.postgres.connections import PATIENCE_SECONDS, Connection, Connections, hang_up, pause
from turnwire.stores.postgres.failures import DiskFull, Refused, Unwritable, is_passing, reason
from turnwire.stores.postgres.following import Hub
from turnwire.stores.postgres.groups import Append, refusals, write_group
from turnwire.stores.postgres.logs import read_log

logger = logging.getLogger("turnwire.stores.postgres")

_FULL_PAUSE_TRIES = 5
_CLOSE_SECONDS = 15.0
# By key: a plan that was made while the tables were empty must not read all of them later.
_PLANS = {f"enable_{way}": "off" for way in ("seqscan", "hashjoin", "mergejoin", "material")}


class Writer:
    def __init__(self, connections: Connections, hub: Hub) -> None:
        self.keeps_outbox = False
        self._connections = connections
        self._hub = hub
        self._gatherers = Gatherers()
        self._waiting: list[Append] = []
        self._open: dict[str, Append] = {}
        self._under_way: set[str] = set()
        self._moved = asyncio.Event()
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_all(), name="turnwire-writer")

    async def close(self) -> None:
        """Commits what was handed over before, if the database is there."""
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._idle.wait()
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._connection is not None:
            await hang_up(self._connection)

    async def settled(self, turn_id: str) -> None:
        """Returns when all that was handed over for this turn is committed or refused. Raises StoreAwayError."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while turn_id in self._open or turn_id in self._under_way:
                    await self._moved.wait()
        except TimeoutError as error:
            raise StoreAwayError("what was written before is not committed yet") from error

    def before_commit(self, gather: Callable[[], None]) -> None:
        self._gatherers.add(gather)
        self._want()

    def append(
        self,
        turn_id: str,
        epoch: int,
        events: Sequence[LoggedEvent],
        settle: Settle,
        ending: TurnState | None,
        parking: Parking | None,
        release: bool,
    ) -> None:
        append = self._open.get(turn_id)
        if append is not None and append.settle is settle and append.epoch == epoch and append.is_plain:
            append.events.extend(events)
        else:
            append = self._open[turn_id] = Append(turn_id, epoch, list(events), settle)
            self._waiting.append(append)
        append.ending, append.parking, append.release = ending, parking, release
        self._want()

    def _want(self) -> None:
        self._idle.clear()
        self._wanted.set()

    async def _write_all(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._gatherers.run()
            if group := self._next_group():
                self._under_way = {append.turn_id for append in group}
                try:
                    await self._commit(group)
                except Exception as error:
                    logger.exception("a group could not be committed")
                    self._refuse(group, {}, StoreError(f"the log could not be written: {type(error).__name__}"))
                self._under_way = set()
                self._moved.set()
                self._moved = asyncio.Event()
            if self._waiting or self._gatherers:
                self._wanted.set()
            elif not self._wanted.is_set():
                self._idle.set()

    def _next_group(self) -> list[Append]:
        """What waits, one append a turn: the next one of a turn is checked against what this one has left."""
        group: dict[str, Append] = {}
        later: list[Append] = []
        for append in self._waiting:
            if append.turn_id in group:
                later.append(append)
            else:
                group[append.turn_id] = append
        self._waiting = later
        self._open = {append.turn_id: append for append in later}
        return list(group.values())

    async def _commit(self, group: list[Append]) -> None:
        tries = 0
        is_unsure = was_unsure = False
        while group:
            try:
                connection = await self._connected()
                async with self._connections.held(connection):
                    if is_unsure:
                        group = await self._find_out(connection, group)
                        is_unsure = False
                        continue
                    written = await write_group(connection, group, keeps_outbox=self.keeps_outbox)
            except Unwritable as error:
                await self._commit_each(group, error)
                return
            except DiskFull:
                group = self._make_way(group)
                tries = max(tries, _FULL_PAUSE_TRIES)
            except Exception as error:
                if isinstance(error, Refused) and not is_passing(error):
                    raise
                # Whatever the driver says, the server may have committed it.
                if not was_unsure:
                    logger.warning("the database was lost during a commit (%s); it is asked again", reason(error))
                is_unsure = was_unsure = True
                self._drop_connection()
            else:
                # The next group is on its way before these are told.
                asyncio.get_running_loop().call_soon(self._publish, [one for one in group if one.turn_id in written])
                refused = [append for append in group if append.turn_id not in written]
                if refused:
                    await self._refuse_for_cause(refused, was_unsure)
                return
            await pause(tries)
            tries += 1

    async def _refuse_for_cause(self, group: list[Append], was_unsure: bool) -> None:
        async def look(connection: Connection, _: bool) -> tuple[list[Append], dict[str, Refusal]]:
            # The first attempt may have been committed after all, later than it was looked for.
            rest = await self._find_out(connection, group) if was_unsure else group
            return rest, await refusals(connection, rest)

        self._refuse(*await self._connections.run(look, patience=math.inf))

    async def _commit_each(self, group: list[Append], error: Exception) -> None:
        """Something that somebody wrote cannot be kept: it fails its own turn, not everybody's."""
        if len(group) == 1:
            logger.error("what turn %s wrote cannot be kept: %s", group[0].turn_id, reason(error))
            self._refuse(group, {}, StoreError(f"this cannot be written: {reason(error)}"))
            return
        for append in group:
            await self._commit([append])

    def _make_way(self, group: list[Append]) -> list[Append]:
        """The server's disk is full: what ends a turn is tried until there is room, the rest is refused."""
        logger.error("the database's disk is full: running turns are ended, new ones refused, until there is room")
        self._refuse([append for append in group if append.ending is None], {}, StoreFullError())
        return [append for append in group if append.ending is not None]

    async def _find_out(self, connection: Connection, group: list[Append]) -> list[Append]:
        """Settles what has been committed, or never can be; returns what has to be written (again)."""
        committed: list[Append] = []
        for append in group:
            try:
                found = await read_log(connection, append.turn_id, append.events[0].position - 1, 1)
            except TurnNotFoundError:
                continue  # Writing it will say so.
            except TurnwireError:
                found = []
            if found and found[0].epoch == append.epoch:
                committed.append(append)
        self._publish(committed)
        return [append for append in group if append not in committed]

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connections.connect(**_PLANS)
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _publish(self, group: Sequence[Append]) -> None:
        for append in group:
            self._hub.committed(append.turn_id, append.events)
            if append.ending is not None or append.release:
                self._hub.happened(RUNNABLE)
            append.settle(len(append.events), None)

    def _refuse(self, group: Sequence[Append], why: dict[str, Refusal], otherwise: StoreError | None = None) -> None:
        for append in group:
            append.settle(len(append.events), why.get(append.turn_id) or otherwise or FencedError(append.turn_id))
