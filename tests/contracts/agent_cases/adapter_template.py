"""The template of "Write an adapter in 60 lines": an agent of a made-up SDK, which calls the server over HTTP."""

import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

FOLDER = Path(__file__).parents[3] / "docs" / "examples"
sys.path.append(str(FOLDER))
try:
    sdk, template, journaled = (import_module(name) for name in ("acme_sdk", "adapter", "adapter_journal"))
finally:
    sys.path.remove(str(FOLDER))

NAME = "adapter_template"
APIS = ("chat",)
CANNOT = {
    "approvals": "the template is for a first version; its page says what comes next",
    "files": "it takes no files, so a message with one is refused",
    "options": "it hands no model options on, so they are refused",
    "steering": "its messages are queued, and begin the next turn",
    "waits": "it keeps no journal, so a message with client tools is refused",
}
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
) -> Any:
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout)
    return template.AcmeAdapter(sdk.AcmeAgent(client, "small", tools=tools, prompt="Be kind."))


def adapt(built: Any, *, max_turns: int) -> Any:
    built.agent.rounds = max_turns
    return built


async def close(built: Any) -> None:
    await built.agent.client.close()
