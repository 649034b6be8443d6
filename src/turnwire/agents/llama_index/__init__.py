"""Adapter for agents and workflows of LlamaIndex.

    from llama_index.core.agent.workflow import FunctionAgent

    agent = LlamaIndexAgent(FunctionAgent(llm=OpenAICompatibleLLM("gpt-5-mini"), tools=[search]), max_steps=8)

The SDK's own loop runs the model and the tools, on a copy of the agent for each run. `runner` makes the copy, `events`
records what the run reports, and `continuation` records each call or answers it from the journal.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.llama_index.agent import LlamaIndexAgent
    from turnwire.agents.llama_index.llm import OpenAICompatibleLLM
    from turnwire.agents.llama_index.tools import llama_tools

__all__ = ["LlamaIndexAgent", "OpenAICompatibleLLM", "llama_tools"]

__getattr__ = lazy_exports(__name__, {"LlamaIndexAgent": "agent", "OpenAICompatibleLLM": "llm", "llama_tools": "tools"})
