"""Adapter for agents of the OpenAI Agents SDK.

    from agents import Agent

    agent = OpenAIAgentsAgent(Agent(name="Helper", tools=[search]), max_turns=8)

The SDK's own loop runs the model, the tools and the handoffs; this package turns the run into events while it happens.
The SDK's event stream is not enough: it reports parallel tools when all have ended, agents that are used as tools not
at all, and a truncated answer as a whole one. So `runner` reads the stream of every model, also in the runs that
tools start, and `events` hooks into every tool. `approvals` maps the SDK's interruptions to approvals.
"""

from turnwire.agents.openai_agents.agent import OpenAIAgentsAgent
from turnwire.agents.openai_agents.tools import function_tools

__all__ = ["OpenAIAgentsAgent", "function_tools"]
