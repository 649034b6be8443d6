"""Our tools, and those of a turn's client, as tools of LlamaIndex.

agent = FunctionAgent(llm=llm, tools=llama_tools([weather, delete_file]))
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.tools import FunctionTool, ToolMetadata, ToolOutput

from turnwire.core.journal.waits import ClientTool
from turnwire.tools import Tool, ToolOutcome
from turnwire.tools.declaration import BadArgumentsError, Function, as_tool
from turnwire.tools.invocation import run_any_tool, running_call_id


@dataclass
class SchemaMetadata(ToolMetadata):
    """The description of a tool whose parameters are a JSON schema."""

    parameters: dict[str, Any] = field(default_factory=dict[str, Any])

    def get_parameters_dict(self) -> dict[str, Any]:
        return self.parameters


class TurnwireTool(FunctionTool):
    """One of our tools, with its limits and its schema, or one of the client's."""

    def __init__(self, tool: Tool | ClientTool) -> None:
        async def call(**args: Any) -> ToolOutcome:
            return await run_any_tool(tool, args, call_id=running_call_id())

        self.ours = tool if isinstance(tool, Tool) else None
        metadata = SchemaMetadata(tool.description, tool.name, None, parameters=tool.parameters)
        super().__init__(async_fn=call, metadata=metadata)

    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        outcome: ToolOutcome = await self.async_fn(**kwargs)
        return ToolOutput(
            self.metadata.get_name(),
            content=outcome.text,
            raw_input={},
            raw_output=outcome.result,
            is_error=not outcome.success,
        )


def llama_tools(tools: Iterable[Tool | Function]) -> list[FunctionTool]:
    """Convert tools to the SDK's tools, which keep their limits, schema and `needs_approval`."""
    return [TurnwireTool(as_tool(item)) for item in tools]


def check_arguments(tool: Any, args: dict[str, Any]) -> None:
    """Raise BadArgumentsError if a function does not take these arguments: the SDK does not check them."""
    if not isinstance(tool, FunctionTool) or isinstance(tool, TurnwireTool):
        return
    own = {tool.ctx_param_name: None} if tool.ctx_param_name else {}
    try:
        inspect.signature(tool.real_fn).bind(**{**tool.partial_params, **args, **own})
    except TypeError as error:
        raise BadArgumentsError(str(error)) from None
