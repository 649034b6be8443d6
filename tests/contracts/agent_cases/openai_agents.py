"""The OpenAI Agents SDK, with its own models for both APIs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    Tool,
    function_tool,
)
from openai import AsyncOpenAI

from tests.contracts.office import IDEMPOTENT
from tests.contracts.turns import BOUND
from turnwire.agents.openai_agents import OpenAIAgentsAgent, function_tools
from turnwire.tools import Tool as OurTool

NAME = "openai_agents"
APIS = ("chat", "responses")
CANNOT = {
    "edits": "an approval of the SDK has no arguments",
    "nested": "a run that a tool starts reports its interruptions to that tool",
}
TOOL_ERROR = "reported"
UNKNOWN_TOOL = "reported"


def build(
    url: str,
    tools: Sequence[Any],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
) -> Agent[Any]:
    model = sdk_model(url, api=api, timeout=timeout)
    ours = function_tools([each for each in tools if isinstance(each, OurTool)])
    theirs = [
        function_tool(each, needs_approval=each.__name__ in asks) for each in tools if not isinstance(each, OurTool)
    ]
    return Agent(name="Helper", instructions="Be kind.", model=model, tools=[*ours, *theirs])


def delegate(url: str, tools: Sequence[Any], *, api: Any, timeout: float) -> Agent[Any]:
    scout = build(url, tools, api=api, timeout=timeout)
    scout.name = "Scout"

    @function_tool
    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        return (await Runner.run(scout, question)).final_output

    return Agent(name="Chief", instructions="Lead.", model=scout.model, tools=[ask_scout])


def build_office(url: str, tools: Mapping[str, Any]) -> Agent[Any]:
    model = sdk_model(url, api="chat", timeout=BOUND)
    look, count, pay, pick = (function_tool(tools[name]) for name in ("look", "count", "pay", "pick"))
    send = function_tool(tools["send"], needs_approval=True)
    scout = Agent(name="Scout", instructions="Look.", model=model, tools=[look])
    boss = Agent(name="Boss", instructions="Decide.", model=model, tools=[pay, send])
    asking = scout.as_tool("ask_scout", "Ask the scout.")
    own: list[Tool] = [look, count, pay, pick, asking]
    return Agent(name="Desk", instructions="Work.", model=model, tools=own, handoffs=[boss])


def adapt_office(built: Agent[Any]) -> OpenAIAgentsAgent:
    return OpenAIAgentsAgent(built, idempotent=IDEMPOTENT)


def sdk_model(url: str, *, api: Any, timeout: float = 10.0) -> Model:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout)
    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    return kind("small", client)


def adapt(built: Agent[Any], *, max_turns: int) -> OpenAIAgentsAgent:
    return OpenAIAgentsAgent(built, max_turns=max_turns)


def allow(built: Agent[Any], options: bool | Collection[str]) -> OpenAIAgentsAgent:
    return OpenAIAgentsAgent(built, takes_model_options=options)


async def close(built: Agent[Any]) -> None:
    await built.model._client.close()  # type: ignore
