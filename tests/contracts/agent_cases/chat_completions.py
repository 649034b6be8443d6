"""Turnwire's own loop over any OpenAI-compatible server."""

from collections.abc import Callable, Sequence
from typing import Any

from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.models.openai_client import OpenAIModel

NAME = "chat_completions"
APIS = ("chat", "responses")
CANNOT: dict[str, str] = {}
TOOL_ERROR = "told"
UNKNOWN_TOOL = "told"


def build(url: str, tools: Sequence[Callable[..., Any]], *, api: Any, timeout: float) -> ChatCompletionsAgent:
    model = OpenAIModel("small", base_url=url, api=api, timeout=timeout, retries=0)
    return ChatCompletionsAgent(model, instructions="Be kind.", tools=tools)


def adapt(built: ChatCompletionsAgent, *, max_turns: int) -> ChatCompletionsAgent:
    built.max_steps = max_turns
    return built


async def close(built: ChatCompletionsAgent) -> None:
    await built.close()
