"""Adapter for agents of the OpenAI Agents SDK.

    from agents import Agent

    agent = OpenAIAgentsAgent(Agent(name="Helper", tools=[search]), max_turns=8)

The SDK's own loop runs the model, the tools and the handoffs; this package turns the run into events while it happens.
The SDK's event stream is not enough: it reports parallel tools only when all have ended, it does not report agents that
are used as tools, and it reports a truncated answer as a complete one. So `runner` reads the stream of every model,
also in the runs that tools start, and `events` hooks into every tool. `approvals` decides the calls that interrupt a
run, and `internals` checks what the package uses of the SDK's internals.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.openai_agents.agent import OpenAIAgentsAgent
    from turnwire.agents.openai_agents.tools import function_tools

__all__ = ["OpenAIAgentsAgent", "function_tools"]

__getattr__ = lazy_exports(__name__, {"OpenAIAgentsAgent": "agent", "function_tools": "tools"})
