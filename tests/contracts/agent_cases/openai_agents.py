"""The OpenAI Agents SDK, with its own models for both APIs."""

from collections.abc import Callable, Sequence
from typing import Any

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    function_tool,
)
from openai import AsyncOpenAI

from turnwire.agents.openai_agents import OpenAIAgentsAgent

NAME = "openai_agents"
APIS = ("chat", "responses")
CANNOT: dict[str, str] = {}
TOOL_ERROR = "told"
UNKNOWN_TOOL = "told"


def build(url: str, tools: Sequence[Callable[..., Any]], *, api: Any, timeout: float) -> Agent[Any]:
    model = sdk_model(url, api=api, timeout=timeout)
    return Agent(name="Helper", instructions="Be kind.", model=model, tools=[function_tool(tool) for tool in tools])


def sdk_model(url: str, *, api: Any, timeout: float = 10.0) -> Model:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout)
    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    return kind("small", client)


def adapt(built: Agent[Any], *, max_turns: int) -> OpenAIAgentsAgent:
    return OpenAIAgentsAgent(built, max_turns=max_turns)


async def close(built: Agent[Any]) -> None:
    await built.model._client.close()  # type: ignore
