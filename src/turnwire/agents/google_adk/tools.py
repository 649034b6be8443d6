"""Our tools, and those of a turn's client, as tools of the SDK.

agent = LlmAgent(name="helper", model="gemini-3-flash", tools=adk_tools([weather, delete_file]))
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.adk.agents import BaseAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from turnwire.core.journal.waits import ClientTool
from turnwire.tools import Tool, run_tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_client_tool


def adk_tools(tools: Iterable[Tool | Function]) -> list[BaseTool]:
    """Convert tools to the SDK's tools, which keep their limits, schema and `needs_approval`."""
    return [AdkTool(as_tool(item)) for item in tools]


class AdkTool(BaseTool):
    """One of our tools. A failure is returned as a dict whose only key is `error`, as the SDK expects."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self.tool = tool

    def _get_declaration(self) -> types.FunctionDeclaration:
        return _declaration(self.name, self.description, self.tool.parameters)

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        return bool(self.tool.requires_approval(args))

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        outcome = await run_tool(self.tool, args, call_id=tool_context.function_call_id)
        return outcome.result if outcome.success else {"error": outcome.text}


class AdkClientTool(BaseTool):
    """A tool that the client runs."""

    def __init__(self, tool: ClientTool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._parameters = tool.parameters

    def _get_declaration(self) -> types.FunctionDeclaration:
        return _declaration(self.name, self.description, self._parameters)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        outcome = await run_client_tool(tool_context.function_call_id or "", self.name, args)
        return outcome.result if outcome.success else {"error": outcome.text}


def _declaration(name: str, description: str, parameters: dict[str, Any]) -> types.FunctionDeclaration:
    return types.FunctionDeclaration(name=name, description=description, parameters_json_schema=parameters)


def tool_names(agent: BaseAgent) -> Iterator[str]:
    """Yield the names of the functions and tools of an agent."""
    tools: Sequence[Any] = getattr(agent, "tools", ())
    for tool in tools:
        name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
        if isinstance(name, str):
            yield name
