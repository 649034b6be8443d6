"""Our tools, and those of a turn's client, as tools of the SDK.

agent = LlmAgent(name="helper", model="gemini-3-flash", tools=adk_tools([weather, delete_file]))
"""

from collections.abc import Iterable
from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from turnwire.core.journal.waits import ClientTool
from turnwire.tools import Tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_any_tool


def adk_tools(tools: Iterable[Tool | Function]) -> list[BaseTool]:
    """Convert tools to the SDK's tools, which keep their limits, schema and `needs_approval`."""
    return [AdkTool(as_tool(item)) for item in tools]


class AdkTool(BaseTool):
    """One of our tools, or of the client's. A failure is a dict whose only key is `error`, as the SDK expects."""

    def __init__(self, tool: Tool | ClientTool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._tool = tool

    @property
    def ours(self) -> Tool | None:
        return self._tool if isinstance(self._tool, Tool) else None

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._tool.parameters
        )

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        return self.ours is not None and self.ours.requires_approval(args)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        outcome = await run_any_tool(self._tool, args, call_id=tool_context.function_call_id)
        return outcome.result if outcome.success else {"error": outcome.text}


def our_tool(tool: BaseTool) -> Tool | None:
    """Return our tool behind a tool of the SDK."""
    return tool.ours if isinstance(tool, AdkTool) else None
