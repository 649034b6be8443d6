"""Our tools as LangChain tools.

graph = create_agent(model, tools=langchain_tools([weather, delete_file]), checkpointer=saver)
"""

from collections.abc import Iterable
from typing import Any

from langchain_core.tools import BaseTool, ToolException
from langgraph.types import interrupt

from turnwire.tools import Tool, run_tool
from turnwire.tools.declaration import Function, as_tool


def langchain_tools(tools: Iterable[Tool | Function]) -> list[BaseTool]:
    """Convert tools to LangChain's tools, which keep their limits, schema and `needs_approval`.

    A tool with `needs_approval` needs a graph with a checkpointer.
    """
    return [_LangChainTool.of(as_tool(item)) for item in tools]


class _LangChainTool(BaseTool):
    ours: Any
    handle_tool_error: Any = True

    @classmethod
    def of(cls, tool: Tool) -> BaseTool:
        return cls(name=tool.name, description=tool.description, args_schema=tool.parameters, ours=tool)

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[()], dict[str, Any]]:
        # Pass the arguments as one value: a parameter may have a name that LangChain reserves.
        return (), {"arguments": tool_input, "call_id": tool_call_id}

    async def _arun(self, arguments: dict[str, Any], call_id: str | None) -> str:
        tool: Tool = self.ours
        if tool.requires_approval(arguments):
            # The format of LangChain's own middleware, so that clients that can answer it can answer this.
            request = {"type": "tool_approval", "tool_call_id": call_id, "name": tool.name, "args": arguments}
            decision: Any = interrupt({**request, "description": tool.description})
            if decision["type"] != "approve":
                raise ToolException(f"Denied: {decision.get('message') or 'the user did not allow this.'}")
        outcome = await run_tool(tool, arguments, call_id=call_id)
        if not outcome.success:
            raise ToolException(outcome.text)
        return outcome.text

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.name} can only be called from async code")
