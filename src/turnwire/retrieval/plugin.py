"""The plugin `documents`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="documents",
    description="the agents `documents` and `vault`, which answer from documents",
    settings="turnwire.retrieval.settings:DocumentSettings",
    service="turnwire.retrieval.service:DocumentService",
    options="turnwire.retrieval.commands:OPTIONS",
    commands="turnwire.retrieval.commands:add_commands",
)
