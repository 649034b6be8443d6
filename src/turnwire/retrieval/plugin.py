"""The plugin `documents`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="documents",
    description="the agents `documents` and `vault`, which answer from documents",
    settings="turnwire.retrieval.settings:DocumentSettings",
    service="turnwire.retrieval.service:DocumentService",
    options="turnwire.retrieval.commands:OPTIONS",
    routes=["turnwire.retrieval.routes:routes"],
    checks="turnwire.retrieval.operations:check",
    move="turnwire.retrieval.operations:move",
    commands="turnwire.retrieval.commands:add_commands",
)
