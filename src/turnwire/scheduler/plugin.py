"""The plugin `scheduler`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="scheduler",
    description="turns at set times",
    commands="turnwire.scheduler.commands:add_commands",
)
