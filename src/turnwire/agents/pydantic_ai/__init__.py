"""A Pydantic AI agent as an agent of ours.

    from pydantic_ai import Agent

    agent = PydanticAIAgent(Agent("openai-chat:gpt-5.2", tools=[search]), usage_limits=UsageLimits(request_limit=8))

The SDK's own loop runs the model and the tools; this tells what happens in it. `listening` reads its events and sits
where there are none, `approvals` makes a person's decision of what the SDK defers.
"""

from turnwire.agents.pydantic_ai.agent import PydanticAIAgent
from turnwire.agents.pydantic_ai.tools import pydantic_tools

__all__ = ["PydanticAIAgent", "pydantic_tools"]
