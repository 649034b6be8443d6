"""The plugin `acp`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="acp",
    description="the agents in editors that speak the Agent Client Protocol",
    commands="turnwire.wires.acp.commands:add_commands",
)
