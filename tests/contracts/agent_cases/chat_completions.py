"""Turnwire's own agent loop over an OpenAI-compatible server."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.contracts.office import IDEMPOTENT
from tests.contracts.turns import BOUND
from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.models.openai_client import OpenAIModel
from turnwire.tools import tool

NAME = "chat_completions"
APIS = ("chat", "responses")
CANNOT: dict[str, str] = {}
TOOL_ERROR = "reported"
UNKNOWN_TOOL = "reported"


def build(
    url: str,
    tools: Sequence[Callable[..., Any]],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
) -> ChatCompletionsAgent:
    model = OpenAIModel("small", base_url=url, api=api, timeout=timeout, retries=0)
    careful = [tool(needs_approval=True)(each) if each.__name__ in asks else each for each in tools if asks]
    return ChatCompletionsAgent(model, instructions="Be kind.", tools=careful or tools)


def build_office(url: str, tools: Mapping[str, Any]) -> ChatCompletionsAgent:
    model = OpenAIModel("small", base_url=url, timeout=BOUND, retries=0)
    own = [tool(idempotent=name in IDEMPOTENT, needs_approval=name == "send")(each) for name, each in tools.items()]
    return ChatCompletionsAgent(model, instructions="Work.", tools=own)


def adapt_office(built: ChatCompletionsAgent) -> ChatCompletionsAgent:
    return built


def adapt(built: ChatCompletionsAgent, *, max_turns: int) -> ChatCompletionsAgent:
    built.max_steps = max_turns
    return built


def allow(built: ChatCompletionsAgent, options: bool | Collection[str]) -> ChatCompletionsAgent:
    return ChatCompletionsAgent(
        built.model, instructions=built.instructions, tools=built.tools.values(), takes_model_options=options
    )


async def close(built: ChatCompletionsAgent) -> None:
    await built.close()
