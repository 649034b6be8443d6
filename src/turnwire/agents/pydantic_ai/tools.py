"""Our tools, and those of a turn's client, as tools of Pydantic AI.

agent = Agent("openai-chat:gpt-5.2", tools=pydantic_tools([weather, delete_file]))
"""

from collections.abc import Iterable
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai import Tool as SdkTool
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.toolsets import FunctionToolset

from turnwire.agents.pydantic_ai.continuation import OUR_TOOL
from turnwire.core.journal.waits import ClientTool
from turnwire.tools import Tool, run_tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_client_tool


def pydantic_tools(tools: Iterable[Tool | Function]) -> list[SdkTool[Any]]:
    """Convert tools to the SDK's tools, which keep their limits, schema and `needs_approval`."""
    return [_sdk_tool(as_tool(item)) for item in tools]


def _sdk_tool(tool: Tool) -> SdkTool[Any]:
    async def call(context: RunContext[Any], /, **args: Any) -> Any:
        if not context.tool_call_approved and tool.requires_approval(args):
            raise ApprovalRequired  # Outside a turn, where no listener has asked for it.
        outcome = await run_tool(tool, args, call_id=context.tool_call_id)
        if not outcome.success:
            raise ToolFailed(outcome.text)
        return outcome.result

    made = SdkTool[Any].from_schema(call, tool.name, tool.description, tool.parameters, takes_ctx=True)
    made.metadata = {OUR_TOOL: tool}
    return made


# Tools that the client runs


def client_toolset(tools: Iterable[ClientTool]) -> FunctionToolset[Any]:
    """Return the client's tools as a toolset of one run."""
    return FunctionToolset([_client_tool(tool) for tool in tools], id="client")


def _client_tool(tool: ClientTool) -> SdkTool[Any]:
    async def call(context: RunContext[Any], /, **args: Any) -> str:
        outcome = await run_client_tool(context.tool_call_id or "", tool.name, args)
        if not outcome.success:
            raise ToolFailed(outcome.text)
        return outcome.text

    return SdkTool[Any].from_schema(call, tool.name, tool.description, tool.parameters, takes_ctx=True)


def function_names(agent: AbstractAgent[Any, Any]) -> frozenset[str]:
    """Return the names of the functions that are tools of an agent."""
    toolsets = (toolset for toolset in agent.toolsets if isinstance(toolset, FunctionToolset))
    return frozenset(name for toolset in toolsets for name in toolset.tools)
