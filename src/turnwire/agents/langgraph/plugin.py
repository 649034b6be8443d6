"""The plugin `langgraph`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="langgraph",
    description="LangChain runnables and LangGraph graphs",
    extra="turnwire[langchain]",
    kinds=[
        AgentKind(
            description="a LangChain runnable or LangGraph graph",
            classes=frozenset({("langchain_core", "Runnable"), ("langgraph", "Pregel")}),
            adapter="turnwire.agents.langgraph:LangGraphAgent",
        )
    ],
)
