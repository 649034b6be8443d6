"""Our tools as tools of Pydantic AI.

agent = Agent("openai-chat:gpt-5.2", tools=pydantic_tools([weather, delete_file]))
"""

from collections.abc import Iterable
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai import Tool as SdkTool
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed

from turnwire.agents.pydantic_ai.continuation import IDEMPOTENT
from turnwire.tools import Tool, run_tool
from turnwire.tools.declaration import Function, as_tool


def pydantic_tools(tools: Iterable[Tool | Function]) -> list[SdkTool[Any]]:
    """Convert tools to the SDK's tools, which keep their limits, schema and `needs_approval`."""
    return [_sdk_tool(as_tool(item)) for item in tools]


def _sdk_tool(tool: Tool) -> SdkTool[Any]:
    async def call(context: RunContext[Any], /, **args: Any) -> Any:
        if not context.tool_call_approved and tool.requires_approval(args):
            raise ApprovalRequired
        outcome = await run_tool(tool, args, call_id=context.tool_call_id)
        if not outcome.success:
            raise ToolFailed(outcome.text)
        return outcome.result

    made = SdkTool[Any].from_schema(call, tool.name, tool.description, tool.parameters, takes_ctx=True)
    if tool.idempotent:
        made.metadata = {IDEMPOTENT: True}
    return made
