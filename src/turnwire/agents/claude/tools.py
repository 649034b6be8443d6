"""Our tools as an in-process MCP server of the SDK, and the calls of all such servers.

options = ClaudeAgentOptions(mcp_servers={"tools": claude_tools([weather, delete_file])})
"""

import json
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import mcp_types as types
from claude_agent_sdk import ClaudeAgentOptions, McpSdkServerConfig
from mcp import Client
from mcp.server.lowlevel import Server

from turnwire.agents.claude.messages import Block, tool_result
from turnwire.tools import Tool, run_tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import ToolOutcome, running_call_id

CALL_ID = "claudecode/toolUseId"
"""The key of the id of a call in its metadata."""
# Claude Code runs tools at the same time only if they are declared so. Turnwire asks for the approvals itself.
_PARALLEL = types.ToolAnnotations(read_only_hint=True)


_collected: ContextVar[list[ToolOutcome] | None] = ContextVar("turnwire_claude_outcomes", default=None)


@contextmanager
def collecting() -> Generator[list[ToolOutcome]]:
    """Collect the outcomes of our own tools in the block: the SDK passes on their texts only."""
    outcomes: list[ToolOutcome] = []
    token = _collected.set(outcomes)
    try:
        yield outcomes
    finally:
        _collected.reset(token)


class ToolServer(Server[Any]):
    """The in-process server of our tools."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        super().__init__("turnwire", on_list_tools=self._list, on_call_tool=self._call)
        self.tools = {tool.name: tool for tool in tools}

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=tool.name, description=tool.description, input_schema=tool.parameters, annotations=_PARALLEL
            )
            for tool in self.tools.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        outcome = await run_tool(self.tools[params.name], params.arguments or {}, call_id=running_call_id())
        if (outcomes := _collected.get()) is not None:
            outcomes.append(outcome)
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=outcome.text)]
        return types.CallToolResult(content=content, is_error=not outcome.success)


def claude_tools(tools: Iterable[Tool | Function]) -> McpSdkServerConfig:
    """Return a server for the SDK's `mcp_servers`, with tools that keep their limits, schema and `needs_approval`."""
    server = ToolServer(map(as_tool, tools))
    return McpSdkServerConfig(type="sdk", name="turnwire", instance=cast("Any", server))


class InProcessTools:
    """The in-process MCP servers in the SDK's options."""

    def __init__(self, options: ClaudeAgentOptions) -> None:
        configs: dict[str, Any] = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}
        # With this setting the SDK offers the tools of in-process servers by their own names.
        has_prefix = not options.env.get("CLAUDE_AGENT_SDK_MCP_NO_PREFIX")
        self._servers: dict[str, Any] = {
            f"mcp__{name}__" if has_prefix else name: config["instance"]
            for name, config in configs.items()
            if config.get("type") == "sdk"
        }
        self._ours: dict[str, Tool] = {}
        for prefix, server in self._servers.items():
            if isinstance(server, ToolServer):
                self._ours |= {f"{prefix}{name}" if has_prefix else name: tool for name, tool in server.tools.items()}
        self._has_prefix = has_prefix

    @property
    def servers(self) -> Iterable[Any]:
        return self._servers.values()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self._ours.values())

    def find(self, tool: str) -> Tool | None:
        """Return our tool that the model calls by this name."""
        return self._ours.get(tool)

    def permission(self, tool: str, args: dict[str, Any]) -> str | None:
        """Return `allow` or `ask` for a call of one of our tools, and None for those that Claude Code decides."""
        ours = self.find(tool)
        if ours is None:
            return None
        return "ask" if ours.requires_approval(args) else "allow"

    def shown_name(self, tool: str) -> str:
        """Return the name of a tool for the log: of ours, without the prefix of its server."""
        ours = self._ours.get(tool)
        return tool if ours is None else ours.name

    def model_name(self, tool: str) -> str:
        """Return the name of a tool for the model."""
        return next((name for name, ours in self._ours.items() if ours.name == tool), tool)

    async def server_of(self, tool: str) -> tuple[Any, str] | None:
        """Return the in-process server that has a tool, and the tool's own name there, or None."""
        for prefix, server in self._servers.items():
            name = tool.removeprefix(prefix) if self._has_prefix else tool
            if self._has_prefix and not tool.startswith(prefix):
                continue
            async with Client(server) as client:
                if name in {each.name for each in (await client.list_tools()).tools}:
                    return server, name
        return None


async def call_in_process(server: Any, name: str, call_id: str, args: dict[str, Any]) -> Block:
    """Call a tool of an in-process server as Claude Code would, and return its result for the model."""
    async with Client(server) as client:
        result: Any = await client.call_tool(name, args, meta=cast("Any", {CALL_ID: call_id}))
    content = [block.model_dump(mode="json", by_alias=True) for block in result.content]
    return tool_result(call_id, result_text(content), is_error=bool(result.is_error))


def result_text(content: Any) -> str:
    """Return the text of a tool's result, in which other blocks are JSON."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    blocks = cast("list[dict[str, Any]]", content)
    return "\n".join(block["text"] if block.get("type") == "text" else json.dumps(block) for block in blocks)
