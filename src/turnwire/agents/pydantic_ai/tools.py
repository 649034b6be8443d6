"""Our tools, and those of a turn's client, as tools of Pydantic AI.

agent = Agent("openai-chat:gpt-5.2", tools=pydantic_tools([weather, delete_file]))
"""

from collections.abc import Iterable
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai import Tool as SdkTool
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset

from turnwire.core.journal.waits import ClientTool
from turnwire.tools import Tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_any_tool

_OUR_TOOL = "turnwire_tool"
"""The key of one of our own tools in the metadata of its definition."""


def pydantic_tools(tools: Iterable[Tool | Function]) -> list[SdkTool[Any]]:
    """Convert tools to the SDK's tools, which keep their limits, schema and `needs_approval`."""
    return [_sdk_tool(as_tool(item)) for item in tools]


def client_toolset(tools: Iterable[ClientTool]) -> FunctionToolset[Any]:
    """Return the client's tools as a toolset of one run."""
    return FunctionToolset(list(map(_sdk_tool, tools)), id="client")


def _sdk_tool(tool: Tool | ClientTool) -> SdkTool[Any]:
    async def call(context: RunContext[Any], /, **args: Any) -> Any:
        if isinstance(tool, Tool) and not context.tool_call_approved and tool.requires_approval(args):
            raise ApprovalRequired  # Outside a turn, where no listener has asked for it.
        outcome = await run_any_tool(tool, args, call_id=context.tool_call_id)
        if not outcome.success:
            raise ToolFailed(outcome.text)
        return outcome.result

    made = SdkTool[Any].from_schema(call, tool.name, tool.description, tool.parameters, takes_ctx=True)
    made.metadata = {_OUR_TOOL: tool} if isinstance(tool, Tool) else None
    return made


def our_tool(tool_def: ToolDefinition) -> Tool | None:
    """Return the tool of `pydantic_tools` with this definition."""
    return (tool_def.metadata or {}).get(_OUR_TOOL)


def function_names(agent: AbstractAgent[Any, Any]) -> frozenset[str]:
    """Return the names of the functions that are tools of an agent."""
    toolsets = (toolset for toolset in agent.toolsets if isinstance(toolset, FunctionToolset))
    return frozenset(name for toolset in toolsets for name in toolset.tools)
