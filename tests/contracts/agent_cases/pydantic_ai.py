"""A Pydantic AI agent, with its own clients of both APIs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.contracts.office import IDEMPOTENT
from tests.contracts.turns import BOUND
from turnwire.agents.pydantic_ai import PydanticAIAgent, pydantic_tools
from turnwire.tools import Tool as OurTool

NAME = "pydantic_ai"
APIS = ("chat", "responses")
CANNOT = {"nested": "a run of the SDK inside a tool ends with its request for approval"}
TOOL_ERROR = "fatal"
UNKNOWN_TOOL = "reported"


def build(
    url: str,
    tools: Sequence[Any],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
) -> Agent[Any, Any]:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout)
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    ours = pydantic_tools([each for each in tools if isinstance(each, OurTool)])
    theirs = [Tool(each, requires_approval=each.__name__ in asks) for each in tools if not isinstance(each, OurTool)]
    model = kind("small", provider=OpenAIProvider(openai_client=client))
    return Agent(model, instructions="Be kind.", tools=[*ours, *theirs])


def delegate(url: str, tools: Sequence[Any], *, api: Any, timeout: float) -> Agent[Any, Any]:
    scout = build(url, tools, api=api, timeout=timeout)
    scout.name = "Scout"

    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        return (await scout.run(question)).output

    return Agent(scout.model, instructions="Lead.", tools=[ask_scout])


def build_office(url: str, tools: Mapping[str, Any]) -> Agent[Any, Any]:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=BOUND)
    model = OpenAIChatModel("small", provider=OpenAIProvider(openai_client=client))
    scout = Agent(model, name="Scout", instructions="Look.", tools=[tools["look"]])

    async def ask_scout(input: str) -> str:
        """Ask the scout."""
        return (await scout.run(input)).output

    plain = [tools["look"], tools["count"], tools["pay"], tools["pick"]]
    own = [*plain, ask_scout, Tool(tools["send"], requires_approval=True)]
    return Agent(model, name="Desk", instructions="Work.", tools=own)


def adapt_office(built: Agent[Any, Any]) -> PydanticAIAgent:
    return PydanticAIAgent(built, idempotent=IDEMPOTENT)


def adapt(built: Agent[Any, Any], *, max_turns: int) -> PydanticAIAgent:
    return PydanticAIAgent(built, usage_limits=UsageLimits(request_limit=max_turns))


def allow(built: Agent[Any, Any], options: bool | Collection[str]) -> PydanticAIAgent:
    return PydanticAIAgent(built, takes_model_options=options)


async def close(built: Agent[Any, Any]) -> None:
    await built.model.client.close()  # type: ignore[union-attr]
