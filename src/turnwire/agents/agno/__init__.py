"""Adapter for agents and teams of agno.

    from agno.agent import Agent

    agent = AgnoAgent(Agent(model=OpenAIChat("gpt-5-mini"), tools=[search]), max_model_calls=8)

The SDK's own loop runs the model and the tools. `runner` wraps the methods of the SDK's models through which all calls
of models and tools go, also in runs that tools start; `events` turns the calls into events. A tool that needs
confirmation does not pause the SDK's run: the call itself waits for the decision.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.agno.agent import AgnoAgent
    from turnwire.agents.agno.tools import agno_tools

__all__ = ["AgnoAgent", "agno_tools"]

__getattr__ = lazy_exports(__name__, {"AgnoAgent": "agent", "agno_tools": "tools"})
