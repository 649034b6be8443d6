"""Our tools as tools of the OpenAI Agents SDK.

agent = Agent(name="Helper", tools=function_tools([weather, delete_file]))
"""

from collections.abc import Iterable
from typing import Any

from agents import FunctionTool, RunContextWrapper
from agents import Tool as SdkTool
from agents.tool_context import ToolContext

from turnwire.agents.openai_agents.events import running_run
from turnwire.tools import Tool, read_arguments, run_tool
from turnwire.tools.declaration import Function, as_tool


def function_tools(tools: Iterable[Tool | Function]) -> list[SdkTool]:
    """Convert tools to `FunctionTool`s that keep their limits, schema and `needs_approval`."""
    return [_function_tool(as_tool(item)) for item in tools]


def _function_tool(tool: Tool) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        outcome = await run_tool(tool, read_arguments(arguments), call_id=context.tool_call_id)
        if run := running_run():
            run.note_outcome(context.tool_call_id, outcome)
        return outcome.text

    async def needs_approval(context: RunContextWrapper[Any], args: dict[str, Any], call_id: str) -> bool:
        return tool.requires_approval(args)

    return FunctionTool(
        tool.name,
        tool.description,
        tool.parameters,
        invoke,
        strict_json_schema=False,
        needs_approval=needs_approval if tool.needs_approval else False,
    )
