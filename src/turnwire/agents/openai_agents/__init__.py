"""An agent of the OpenAI Agents SDK as an agent of ours.

    from agents import Agent

    agent = OpenAIAgentsAgent(Agent(name="Helper", tools=[search]), max_turns=8)

The SDK's own loop runs the model, the tools and the handoffs; this tells what happens in it, when it happens. The SDK's
stream of events is not enough for that: of tools that run side by side it tells when all have ended, of agents that are
used as tools nothing, and half an answer passes for a whole one. So `models` reads along with every model, `hooks`
stands beside every tool, and `runner` sees that the runs inside tools get both. `approvals` makes a person's decision
of what interrupts a run.
"""

from turnwire.agents.openai_agents.agent import OpenAIAgentsAgent
from turnwire.agents.openai_agents.tools import function_tools

__all__ = ["OpenAIAgentsAgent", "function_tools"]
