"""The plugin `ag_ui`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="ag_ui",
    description="the Agent User Interaction protocol",
    routes=["turnwire.wires.ag_ui.routes:routes"],
    wires={"ag_ui": "turnwire.wires.ag_ui.encoder:AgUi.of_query"},
    service="turnwire.wires.ag_ui.resume:RunNames",
)
