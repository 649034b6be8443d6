"""LangGraph graphs, LangChain agents and other LangChain runnables as agents of ours."""

from turnwire.agents.langgraph.agent import LangGraphAgent

__all__ = ["LangGraphAgent"]
