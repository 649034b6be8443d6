"""An agent of agno, with its own client of the Chat Completions API."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.tools import tool
from agno.utils.message import PROVIDER_TOOL_ID_CONFIG

from tests.contracts.office import IDEMPOTENT
from turnwire.agents.agno import AgnoAgent, agno_tools
from turnwire.tools import Tool as OurTool

NAME = "agno"
APIS = ("chat",)
CANNOT: dict[str, str] = {}
TOOL_ERROR = "reported"
UNKNOWN_TOOL = "reported"
# The ids of the scripted model do not begin as OpenAI's do, and the SDK would send others in their place.
PROVIDER_TOOL_ID_CONFIG["openai_chat"]["prefix"] = None


def sdk_model(url: str, timeout: float) -> OpenAIChat:
    # The SDK may copy a model with its client, so no connection is kept that nobody would close.
    client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
    return OpenAIChat("small", base_url=url, api_key="none", max_retries=0, timeout=timeout, http_client=client)


def build(
    url: str,
    tools: Sequence[Any],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
    name: str = "Helper",
) -> Agent:
    ours = agno_tools([each for each in tools if isinstance(each, OurTool)])
    own = [each for each in tools if not isinstance(each, OurTool)]
    theirs = [tool(requires_confirmation=True)(each) if each.__name__ in asks else each for each in own]
    return Agent(name=name, model=sdk_model(url, timeout), instructions="Be kind.", tools=[*ours, *theirs])


def delegate(url: str, tools: Sequence[Any], *, api: Any, timeout: float) -> Agent:
    scout = build(url, tools, api=api, timeout=timeout, name="Scout")
    scout.telemetry = False

    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        return str((await scout.arun(question)).content)

    return Agent(name="Chief", model=scout.model, instructions="Lead.", tools=[ask_scout])


def build_office(url: str, tools: Mapping[str, Any]) -> Agent:
    model = sdk_model(url, 60)
    scout = Agent(name="Scout", model=model, instructions="Look.", tools=[tools["look"]], telemetry=False)

    async def ask_scout(input: str) -> str:
        """Ask the scout."""
        return str((await scout.arun(input)).content)

    plain = [tools["look"], tools["count"], tools["pay"], tools["pick"]]
    own = [*plain, ask_scout, tool(requires_confirmation=True)(tools["send"])]
    return Agent(name="Desk", model=model, instructions="Work.", tools=own)


def adapt_office(built: Agent) -> AgnoAgent:
    return AgnoAgent(built, idempotent=IDEMPOTENT)


def adapt(built: Agent, *, max_turns: int) -> AgnoAgent:
    return AgnoAgent(built, max_model_calls=max_turns)


def allow(built: Agent, options: bool | Collection[str]) -> AgnoAgent:
    return AgnoAgent(built, takes_model_options=options)


async def close(built: Agent) -> None:
    await built.model.http_client.aclose()  # type: ignore[union-attr]
