"""The plugin `agno`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="agno",
    description="agents and teams of agno",
    extra="turnwire[agno]",
    kinds=[
        AgentKind(
            description="an agent or team of agno",
            classes=frozenset({("agno", "Agent"), ("agno", "Team")}),
            adapter="turnwire.agents.agno:AgnoAgent",
            hook="turnwire.agents.agno.runner:install_runner",
        )
    ],
)
