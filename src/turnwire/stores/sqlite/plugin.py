"""The plugin `sqlite`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="sqlite",
    description="the stores of one process: in a file, which is the default, and in memory",
    stores={
        "memory": "turnwire.stores.memory:MemoryStore.build",
        "sqlite": "turnwire.stores.sqlite.store:SqliteStore.build",
    },
    move_from="turnwire.stores.sqlite.transfer:SqliteExport.build",
)
