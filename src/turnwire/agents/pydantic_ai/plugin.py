"""The plugin `pydantic_ai`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="pydantic_ai",
    description="agents of Pydantic AI",
    extra="turnwire[pydantic-ai]",
    kinds=[
        AgentKind(
            description="an agent of Pydantic AI",
            classes=frozenset({("pydantic_ai", "AbstractAgent"), ("pydantic_ai", "Agent")}),
            adapter="turnwire.agents.pydantic_ai:PydanticAIAgent",
            hook="turnwire.agents.pydantic_ai.runner:install_runner",
        )
    ],
)
