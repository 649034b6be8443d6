from pydantic import Field

from turnwire.settings import PluginSettings


class LinesSettings(PluginSettings, env_prefix="TURNWIRE_LINES_"):
    tools: bool = Field(default=True, description="Whether tool calls have lines.")
