"""Adapter for LangGraph graphs, LangChain agents and other LangChain runnables."""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.langgraph.agent import LangGraphAgent
    from turnwire.agents.langgraph.tools import langchain_tools

__all__ = ["LangGraphAgent", "langchain_tools"]

__getattr__ = lazy_exports(__name__, {"LangGraphAgent": "agent", "langchain_tools": "tools"})
