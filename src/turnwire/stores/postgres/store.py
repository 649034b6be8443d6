"""The PostgreSQL store: the logs of any number of processes, each of which commits its turns in groups."""

from collections.abc import Callable

from turnwire.stores.postgres.admission import PostgresAdmission
from turnwire.stores.postgres.blobs import PostgresBlobs
from turnwire.stores.postgres.claims import PostgresClaims
from turnwire.stores.postgres.connections import PLANNED_ONCE, Connections
from turnwire.stores.postgres.leases import PostgresLeases
from turnwire.stores.postgres.maintenance import PostgresMaintenance
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.queries import PostgresQueries
from turnwire.stores.postgres.registry import PostgresAnnotations, PostgresRegistry
from turnwire.stores.postgres.schema import open_database
from turnwire.stores.postgres.tables import PostgresTables
from turnwire.stores.postgres.writer import PostgresWriter

_COMMIT_INTERVAL = 0.005


class PostgresStore:
    """A `Store` of many processes, made of the parts of this package.

    `hints` is False behind a pooler that gives every transaction another connection: then commits of other processes
    are found by polling, a little later. `clock` is for tests; leases use the server's own.
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
        notes_waits: bool = False,
        seal_key: bytes | None = None,
        clock: Callable[[], float] | None = None,
        commit_interval: float = _COMMIT_INTERVAL,
    ) -> None:
        def now() -> int | None:
            return None if clock is None else int(clock() * 1000)

        behind_pooler = not hints
        self.connections = pool = Connections(url, connections, behind_pooler=behind_pooler)
        self._following = Connections(url, 1, behind_pooler=behind_pooler, settings=PLANNED_ONCE)
        self._leases = Connections(url, 1, behind_pooler=behind_pooler)
        self._notifier = notifier = CommitNotifier(self._following, with_hints=hints)
        self._writer = writer = PostgresWriter(
            pool, notifier, keeps_outbox=keeps_outbox, notes_waits=notes_waits, interval=commit_interval
        )
        queries = PostgresQueries(pool, notifier)
        claims = PostgresClaims(pool, self._leases, writer, notifier, now, lease)
        registry = PostgresRegistry(pool, notifier)
        annotations = PostgresAnnotations(pool)
        blobs = PostgresBlobs(pool)
        maintenance = PostgresMaintenance(pool, now, seal_key)

        self.read = queries.read
        self.watch = notifier.watch
        self.may_be_watched_elsewhere = notifier.may_be_watched_elsewhere
        self.append = writer.append
        self.journal = queries.journal
        self.seal = queries.seal
        self.ended_turns = queries.ended_turns
        self.maintain = maintenance.maintain

        self.create_turn = PostgresAdmission(pool, notifier).create_turn
        self.find_turn = queries.find_turn
        self.list_turns = queries.list_turns
        self.next_turn = queries.next_turn
        self.unfinished = queries.unfinished
        self.under_way = queries.under_way
        self.delete_turn = maintenance.delete_turn
        self.history = queries.history
        self.turn_state = queries.turn_state
        self.tokens_used = queries.tokens_used

        self.claim = claims.claim
        self.claim_next = claims.claim_next
        self.take_over = claims.take_over
        self.claimed = claims.claimed
        self.hold = claims.hold
        self.waiting = claims.waiting
        self.checkpoint = claims.checkpoint
        self.renew = claims.renew
        self.retire = claims.retire
        self.workers = claims.workers
        self.command = claims.command
        self.commands = claims.commands
        self.attend = claims.attend

        self.ensure_session = registry.ensure_session
        self.find_session = registry.find_session
        self.list_sessions = registry.list_sessions
        self.rename_session = registry.rename_session
        self.delete_session = registry.delete_session
        self.put_blob = blobs.put_blob
        self.read_blob = blobs.read_blob
        self.list_blobs = blobs.list_blobs
        self.list_keys = registry.list_keys
        self.add_key = registry.add_key
        self.revoke_key = registry.revoke_key
        self.annotate = annotations.annotate
        self.find_annotation = annotations.find_annotation
        self.list_annotations = annotations.list_annotations
        self.remove_annotations = annotations.remove_annotations
        self.take_due = registry.take_due
        self.put_off = registry.put_off
        self.dismiss = registry.dismiss
        tables = PostgresTables(pool)
        self.create_tables = tables.create_tables
        self.transaction = tables.transaction

    def leases(self, seconds: float) -> PostgresLeases:
        return PostgresLeases(self._leases, seconds)

    async def open(self) -> None:
        for connections in (self._following, self._leases, self.connections):
            connections.is_closed = False
        await open_database(self.connections)
        self._writer.start()
        self._notifier.start()

    async def close(self) -> None:
        await self._writer.close()
        await self._notifier.close()
        for connections in (self._following, self._leases, self.connections):
            await connections.close()
