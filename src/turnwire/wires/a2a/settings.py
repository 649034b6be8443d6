"""The settings of A2A."""

from pydantic import Field, IPvAnyNetwork

from turnwire.settings import PluginSettings


class A2aSettings(PluginSettings, env_prefix="TURNWIRE_A2A_"):
    open_cards: bool = Field(
        default=False, description="Serve the agent cards without a key, to every client that reaches the port."
    )
    push_networks: list[IPvAnyNetwork] = Field(
        default=[],
        description="Networks that push notifications may be sent to, beside the public internet, and without TLS.",
    )
