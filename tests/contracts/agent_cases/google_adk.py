"""Google's ADK, with its own client of Gemini's API."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models.google_llm import Gemini
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.genai import Client, types

from tests.contracts.office import IDEMPOTENT
from turnwire.agents.google_adk import GoogleADKAgent, adk_tools
from turnwire.tools import Tool as OurTool

NAME = "google_adk"
APIS = ("gemini",)
CANNOT = {
    "fragments": "Gemini's server sends no call whose arguments it cannot read, and the turn fails",
    "lists": "Gemini's server sends no call whose arguments are no object, and the turn fails",
}
TOOL_ERROR = "fatal"
UNKNOWN_TOOL = "reported"


def sdk_model(url: str, timeout: float) -> Gemini:
    options = types.HttpOptions(
        base_url=url.removesuffix("/v1"),
        timeout=int(timeout * 1000),
        retry_options=types.HttpRetryOptions(attempts=1),
    )
    return Gemini(model="gemini-small", client=Client(api_key="none", http_options=options))


def build(
    url: str,
    tools: Sequence[Any],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
    name: str = "Helper",
) -> LlmAgent:
    ours = adk_tools([each for each in tools if isinstance(each, OurTool)])
    theirs = [
        FunctionTool(each, require_confirmation=each.__name__ in asks)
        for each in tools
        if not isinstance(each, OurTool)
    ]
    return LlmAgent(name=name, model=sdk_model(url, timeout), instruction="Be kind.", tools=[*ours, *theirs])


async def run_agent(agent: LlmAgent, message: str, runner: InMemoryRunner | None = None) -> str:
    """Run an agent in a tool, as an application does."""
    runner = runner or InMemoryRunner(agent, app_name=agent.name)
    session = await runner.session_service.create_session(app_name=agent.name, user_id="tool")
    content = types.Content(role="user", parts=[types.Part(text=message)])
    texts = [
        "".join(part.text or "" for part in event.content.parts or ())
        async for event in runner.run_async(user_id="tool", session_id=session.id, new_message=content)
        if event.content
    ]
    return texts[-1]


def delegate(url: str, tools: Sequence[Any], *, api: Any, timeout: float) -> LlmAgent:
    scout = build(url, tools, api=api, timeout=timeout, name="Scout")
    runner = InMemoryRunner(scout, app_name=scout.name)  # Applications have one for all turns.

    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        return await run_agent(scout, question, runner)

    return LlmAgent(name="Chief", model=scout.model, instruction="Lead.", tools=[ask_scout])


def build_office(url: str, tools: Mapping[str, Any]) -> LlmAgent:
    model = sdk_model(url, 60)
    scout = LlmAgent(name="Scout", model=model, instruction="Look.", tools=[tools["look"]])

    async def ask_scout(input: str) -> str:
        """Ask the scout."""
        return await run_agent(scout, input)

    plain = [tools["look"], tools["count"], tools["pay"], tools["pick"]]
    own = [*plain, ask_scout, FunctionTool(tools["send"], require_confirmation=True)]
    return LlmAgent(name="Desk", model=model, instruction="Work.", tools=own)


def adapt_office(built: LlmAgent) -> GoogleADKAgent:
    return GoogleADKAgent(built, idempotent=IDEMPOTENT)


def adapt(built: LlmAgent, *, max_turns: int) -> GoogleADKAgent:
    return GoogleADKAgent(built, run_config=RunConfig(max_llm_calls=max_turns))


def allow(built: LlmAgent, options: bool | Collection[str]) -> GoogleADKAgent:
    return GoogleADKAgent(built, takes_model_options=options)


async def close(built: LlmAgent) -> None:
    await built.model.client.aio.aclose()  # type: ignore[union-attr]
