"""The plugin `llama_index`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="llama_index",
    description="agents and workflows of LlamaIndex",
    extra="turnwire[llama-index]",
    kinds=[
        AgentKind(
            description="an agent or workflow of LlamaIndex",
            classes=frozenset({("workflows", "Workflow")}),
            adapter="turnwire.agents.llama_index:LlamaIndexAgent",
            hook="turnwire.agents.llama_index.runner:install_runner",
        )
    ],
)
