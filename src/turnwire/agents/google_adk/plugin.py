"""The plugin `google_adk`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="google_adk",
    description="agents of Google's ADK",
    extra="turnwire[google-adk]",
    kinds=[
        AgentKind(
            description="an agent of Google's ADK",
            classes=frozenset({("google.adk", "BaseNode"), ("google.adk", "App")}),
            adapter="turnwire.agents.google_adk:GoogleADKAgent",
            hook="turnwire.agents.google_adk.runner:install_runner",
        )
    ],
)
