"""The PostgreSQL store: the logs of any number of processes, each of which commits its turns in groups."""

import time
from collections.abc import Callable, Sequence

from turnwire.core.budget import day_of
from turnwire.core.codec import LoggedEvent, now_ms
from turnwire.core.contracts import Settle, Suspension, Wake
from turnwire.core.errors import StoreUnusableError
from turnwire.core.turns import TurnState
from turnwire.stores.postgres.admission import TurnAdmission
from turnwire.stores.postgres.claims import TurnClaims, TurnCommands
from turnwire.stores.postgres.connections import PLANNED_ONCE, Connections, hang_up, is_passing, pause, unusable
from turnwire.stores.postgres.maintenance import LogMaintenance
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.queries import TurnQueries
from turnwire.stores.postgres.registry import PostgresRegistry
from turnwire.stores.postgres.schema import ensure_partition, migrate

_OPEN_SECONDS = 3.0


class PostgresStore(TurnAdmission, TurnClaims, TurnCommands, TurnQueries, PostgresRegistry, LogMaintenance):
    """`hints` is False behind a pooler that gives every transaction another connection: then readers are told of what
    other processes commit by looking, a little later. `clock` is for tests; leases are by the server's own.
    """

    is_shared = True

    def __init__(
        self,
        url: str,
        *,
        lease: float = 10,
        connections: int = 8,
        hints: bool = True,
        keeps_outbox: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        pool = Connections(url, connections, behind_pooler=not hints)
        self._following = Connections(url, 1, behind_pooler=not hints, settings=PLANNED_ONCE)
        super().__init__(pool, CommitNotifier(self._following, with_hints=hints), lease, clock)
        # Of its own, so that no crowd of other questions can cost a worker its lease.
        self._leasing = Connections(url, 1, behind_pooler=not hints)
        self._writer.keeps_outbox = keeps_outbox

    async def open(self) -> None:
        await self._prepare()
        self._writer.start()
        self._hub.start()

    async def _prepare(self) -> None:
        end = time.monotonic() + _OPEN_SECONDS
        tries = 0
        place = self._connections.place
        while True:
            try:
                connection = await self._connections.connect()
                try:
                    await migrate(connection, place)
                    today = day_of(now_ms())
                    await ensure_partition(connection, today, today + 1)
                finally:
                    await hang_up(connection)
                return
            except StoreUnusableError:
                raise
            except Exception as error:
                if not is_passing(error) or time.monotonic() > end:
                    raise unusable(place, error) from error
            await pause(tries)
            tries += 1

    async def close(self) -> None:
        await self._writer.close()
        await self._hub.close()
        await self._following.close()
        await self._leasing.close()
        await self._connections.close()

    # Writing and watching logs

    def before_commit(self, gather: Callable[[], None]) -> None:
        self._writer.before_commit(gather)

    def append(
        self,
        turn_id: str,
        epoch: int,
        events: Sequence[LoggedEvent],
        settle: Settle,
        ending: TurnState | None = None,
        parking: Suspension | None = None,
        *,
        release: bool = False,
    ) -> None:
        self._writer.append(turn_id, epoch, events, settle, ending, parking, release)

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        return self._hub.watch(key, wake)
