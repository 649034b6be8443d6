"""The plugin `postgres`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="postgres",
    description="the store for many processes, in PostgreSQL",
    extra="turnwire[postgres]",
    stores={"postgres": "turnwire.stores.postgres.store:PostgresStore.build"},
)
