"""The plugin `postgres`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="postgres",
    description="the store for many processes, in PostgreSQL",
    extra="turnwire[postgres]",
    stores={"postgres": "turnwire.stores.postgres.store:PostgresStore.build"},
    database="turnwire.stores.postgres.shared_database:SharedDatabase.build",
    move_to="turnwire.stores.postgres.transfer:PostgresImport.build",
)
