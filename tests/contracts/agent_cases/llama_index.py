"""A function agent of LlamaIndex, with the LLM of the adapter over both APIs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent

from tests.contracts.office import IDEMPOTENT
from tests.contracts.turns import BOUND
from turnwire.agents.llama_index import LlamaIndexAgent, OpenAICompatibleLLM, llama_tools
from turnwire.tools import Tool, tool

NAME = "llama_index"
APIS = ("chat", "responses")
CANNOT: dict[str, str] = {}
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
) -> FunctionAgent:
    llm = OpenAICompatibleLLM("small", base_url=url, api=api, timeout=timeout, retries=0)
    ours = [tool(needs_approval=True)(each) if _name(each) in asks else each for each in tools]
    made = [llama_tools([each])[0] if isinstance(each, Tool) else each for each in ours]
    return FunctionAgent(llm=llm, tools=made, system_prompt="Be kind.")


def _name(item: Any) -> str:
    return item.name if isinstance(item, Tool) else item.__name__


def delegate(url: str, tools: Sequence[Any], *, api: Any, timeout: float) -> FunctionAgent:
    scout = build(url, tools, api=api, timeout=timeout)
    scout.name = "Scout"

    async def ask_scout(question: str) -> str:
        """Ask the scout."""
        return str(await scout.run(question))

    return FunctionAgent(llm=scout.llm, tools=[ask_scout], system_prompt="Lead.")


def build_office(url: str, tools: Mapping[str, Any]) -> FunctionAgent:
    llm = OpenAICompatibleLLM("small", base_url=url, timeout=BOUND, retries=0)
    scout = FunctionAgent(name="Scout", llm=llm, tools=[tools["look"]], system_prompt="Look.")

    async def ask_scout(input: str) -> str:
        """Ask the scout."""
        return str(await scout.run(input))

    own = [tools["look"], tools["count"], tools["pay"], tools["pick"], tools["send"], ask_scout]
    return FunctionAgent(name="Desk", llm=llm, tools=own, system_prompt="Work.")


def adapt_office(built: FunctionAgent) -> LlamaIndexAgent:
    return LlamaIndexAgent(built, idempotent=IDEMPOTENT, needs_approval=["send"])


def adapt(built: FunctionAgent, *, max_turns: int) -> LlamaIndexAgent:
    return LlamaIndexAgent(built, max_steps=max_turns)


def allow(built: FunctionAgent, options: bool | Collection[str]) -> LlamaIndexAgent:
    return LlamaIndexAgent(built, takes_model_options=options)


async def close(built: FunctionAgent) -> None:
    await built.llm.close()  # type: ignore[attr-defined]
