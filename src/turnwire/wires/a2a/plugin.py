"""The plugin `a2a`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="a2a",
    description="the agents as A2A agents",
    routes=["turnwire.wires.a2a.routes:routes"],
    wires={"a2a": "turnwire.wires.a2a.encoder:A2a.of_query"},
    settings="turnwire.wires.a2a.settings:A2aSettings",
    service="turnwire.wires.a2a.push:PushSender",
)
