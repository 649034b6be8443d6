"""Adapter for LangGraph graphs, LangChain agents and other LangChain runnables."""

from turnwire.agents.langgraph.agent import LangGraphAgent
from turnwire.agents.langgraph.tools import langchain_tools

__all__ = ["LangGraphAgent", "langchain_tools"]
