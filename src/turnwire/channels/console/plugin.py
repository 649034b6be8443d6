"""The plugin `console`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="console",
    description="the terminal as a client and as a channel",
    commands="turnwire.channels.console.commands:add_commands",
    channel="turnwire.channels.console",
)
