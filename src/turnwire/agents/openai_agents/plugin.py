"""The plugin `openai_agents`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="openai_agents",
    description="agents of the OpenAI Agents SDK",
    extra="turnwire[agents]",
    kinds=[
        AgentKind(
            description="an agent of the OpenAI Agents SDK",
            classes=frozenset({("agents", "Agent"), ("agents", "AgentBase")}),
            adapter="turnwire.agents.openai_agents:OpenAIAgentsAgent",
            hook="turnwire.agents.openai_agents.runner:install_runner",
        )
    ],
)
