"""The settings of the AI SDK's wire."""

from pydantic import Field

from turnwire.settings import PluginSettings


class AiSdkSettings(PluginSettings, env_prefix="TURNWIRE_AI_SDK_"):
    version: int = Field(
        default=6, ge=5, le=7, description="The major version of the AI SDK's clients; `?sdk_version=` overrides it."
    )
