"""Adapter for Pydantic AI agents.

    from pydantic_ai import Agent

    agent = PydanticAIAgent(Agent("openai-chat:gpt-5.2", tools=[search]), usage_limits=UsageLimits(request_limit=8))

The SDK's own loop runs the model and the tools. `events` turns its events into ours and hooks in where the SDK has
none; there the SDK's deferred tools become approvals.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.pydantic_ai.agent import PydanticAIAgent
    from turnwire.agents.pydantic_ai.tools import pydantic_tools

__all__ = ["PydanticAIAgent", "pydantic_tools"]

__getattr__ = lazy_exports(__name__, {"PydanticAIAgent": "agent", "pydantic_tools": "tools"})
