"""A Pydantic AI agent, with its own clients of both APIs."""

from collections.abc import Callable, Sequence
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from turnwire.agents.pydantic_ai import PydanticAIAgent

NAME = "pydantic_ai"
APIS = ("chat", "responses")
CANNOT: dict[str, str] = {}
TOOL_ERROR = "fatal"
UNKNOWN_TOOL = "told"


def build(url: str, tools: Sequence[Callable[..., Any]], *, api: Any, timeout: float) -> Agent[Any, Any]:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout)
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return Agent(kind("small", provider=OpenAIProvider(openai_client=client)), instructions="Be kind.", tools=tools)


def adapt(built: Agent[Any, Any], *, max_turns: int) -> PydanticAIAgent:
    return PydanticAIAgent(built, usage_limits=UsageLimits(request_limit=max_turns))


async def close(built: Agent[Any, Any]) -> None:
    await built.model.client.close()  # type: ignore[union-attr]
