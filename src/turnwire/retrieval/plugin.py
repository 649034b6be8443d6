"""The plugin `documents`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="documents",
    description="the agents `documents` and `vault`, which answer from documents",
    commands="turnwire.retrieval.commands:add_commands",
)
