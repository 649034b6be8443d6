"""The plugin `sqlite`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="sqlite",
    description="the stores of one process: in a file, which is the default, and in memory",
    stores={
        "memory": "turnwire.stores.sqlite.factory:build_memory",
        "sqlite": "turnwire.stores.sqlite.factory:build_sqlite",
    },
)
