"""The Claude Agent SDK: a process of Claude Code for each turn, which calls Anthropic's Messages API."""

import inspect
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool

from tests.claude_program import claude_program
from turnwire.agents.claude import ClaudeAgent, claude_tools
from turnwire.tools.declaration import as_tool

NAME = "claude"
APIS = ("messages",)
CANNOT = {
    "bounded": "the SDK counts the calls of one process, and an approval ends the process",
    "options": "the adapter hands no model options on, so they are refused",
    "steering": "a message to a running process is taken at a moment that the SDK does not tell exactly",
    "tail": "Claude Code does not pass on what it has read right before a connection is lost",
    "together": "Claude Code begins a tool that is not read-only, and asks for it, when the one before it has ended",
    "truncation": "Claude Code reports both as the same error, with another text",
    "waits": "Claude Code is not offered the tools of clients",
    "woven": "a reply of the API has its blocks one after the other",
    "limits": "Claude Code asks for the rest of an answer that has reached its limit",
}
TOOL_ERROR = "reported"
UNKNOWN_TOOL = "reported"
# Claude Code takes seconds to start.
NEEDS = ("process", "long")


def build(
    url: str,
    tools: Sequence[Any],
    *,
    api: Any,
    timeout: float,
    asks: Collection[str] = (),
    folder: Path | None = None,
) -> ClaudeAgentOptions:
    theirs = [each for each in tools if getattr(each, "__name__", None) in asks]
    servers: dict[str, Any] = {"ours": claude_tools([each for each in tools if each not in theirs])}
    if theirs:
        servers["theirs"] = create_sdk_mcp_server("theirs", tools=[sdk_tool(each) for each in theirs])
    return ClaudeAgentOptions(
        tools=[],
        mcp_servers=servers,
        system_prompt="Be kind.",
        model="small",
        cli_path=claude_program(),
        env={
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
            "API_TIMEOUT_MS": str(int(timeout * 1000)),
            "CLAUDE_AGENT_SDK_MCP_NO_PREFIX": "1",
            # A refused request would be repeated without them.
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
        },
    )


def sdk_tool(function: Any) -> Any:
    """Return a tool of the SDK; Claude Code asks before it runs one that the options do not allow."""

    async def handler(args: dict[str, Any]) -> dict[str, Any]:
        value = function(**args)
        return {"content": [{"type": "text", "text": str(await value if inspect.isawaitable(value) else value)}]}

    return tool(function.__name__, function.__doc__, as_tool(function).parameters)(handler)


def adapt(built: ClaudeAgentOptions, *, max_turns: int) -> ClaudeAgent:
    return ClaudeAgent(replace(built, max_turns=max_turns))
