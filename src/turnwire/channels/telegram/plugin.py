"""The plugin `telegram`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="telegram",
    description="a bot of Telegram",
    extra="turnwire[telegram]",
    channel="turnwire.channels.telegram",
)
