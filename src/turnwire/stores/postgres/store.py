"""The PostgreSQL store: the logs of any number of processes, each of which commits its turns in groups."""

from typing import Self, Unpack

from turnwire.core.contracts.stores import StoreOptions
from turnwire.settings import Settings
from turnwire.stores.blobs import StoredBlobs
from turnwire.stores.plugin_tables import PluginTables
from turnwire.stores.postgres.admission import PostgresAdmission
from turnwire.stores.postgres.claims import PostgresClaims
from turnwire.stores.postgres.database import database_url
from turnwire.stores.postgres.leases import PostgresLeases
from turnwire.stores.postgres.maintenance import PostgresMaintenance
from turnwire.stores.postgres.queries import PostgresQueries
from turnwire.stores.postgres.schema import open_database
from turnwire.stores.registry import StoredAnnotations, StoredKeys, StoredNotices
from turnwire.stores.sessions import StoredSessions


class PostgresStore(
    PostgresAdmission,
    PostgresClaims,
    PostgresMaintenance,
    PostgresQueries,
    StoredSessions,
    StoredBlobs,
    StoredKeys,
    StoredAnnotations,
    StoredNotices,
    PluginTables,
):
    """The `Store` of many processes."""

    is_shared = True

    @classmethod
    def build(cls, settings: Settings, **options: Unpack[StoreOptions]) -> Self:
        """Return the store at `database_url`. Raises StoreUnusableError."""
        return cls(database_url(settings), hints=settings.database_hints, **options)

    def leases(self, seconds: float) -> PostgresLeases:
        return PostgresLeases(self._leasing, seconds)

    async def open(self) -> None:
        for connections in (self._following, self._leasing, self.connections):
            connections.is_closed = False
        await open_database(self.connections)
        self._writer.start()
        self._notifier.start()

    async def close(self) -> None:
        await self._writer.close()
        await self._notifier.close()
        for connections in (self._following, self._leasing, self.connections):
            await connections.close()
