"""The settings of OpenAI's APIs."""

from typing import Literal

from pydantic import Field

from turnwire.settings import PluginSettings


class OpenAISettings(PluginSettings, env_prefix="TURNWIRE_OPENAI_"):
    server_calls: Literal["function_call", "mcp_call"] = Field(
        default="function_call",
        description="The items of a response for tools that ran on the server; most clients need `mcp_call`.",
    )
