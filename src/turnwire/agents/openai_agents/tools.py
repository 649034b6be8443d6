"""Our tools, and those of a turn's client, as tools of the OpenAI Agents SDK.

agent = Agent(name="Helper", tools=function_tools([weather, delete_file]))
"""

from collections.abc import Iterable
from typing import Any

from agents import FunctionTool, RunContextWrapper
from agents import Tool as SdkTool
from agents.agent import AgentBase
from agents.tool_context import ToolContext

from turnwire.agents.openai_agents.events import Run
from turnwire.agents.openai_agents.internals import SDK
from turnwire.agents.sdk_internals import wrap
from turnwire.core.journal.waits import ClientTool, check_names
from turnwire.tools import Tool, read_arguments
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_any_tool


def function_tools(tools: Iterable[Tool | Function]) -> list[SdkTool]:
    """Convert tools to `FunctionTool`s that keep their limits, schema and `needs_approval`."""
    return [_function_tool(as_tool(item)) for item in tools]


def _function_tool(tool: Tool | ClientTool) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        outcome = await run_any_tool(tool, read_arguments(arguments), call_id=context.tool_call_id)
        if run := Run.current():
            run.note_outcome(context.tool_call_id, outcome)
        return outcome.text

    async def needs_approval(context: RunContextWrapper[Any], args: dict[str, Any], call_id: str) -> bool:
        return isinstance(tool, Tool) and tool.requires_approval(args)

    return FunctionTool(
        tool.name,
        tool.description,
        tool.parameters,
        invoke,
        strict_json_schema=False,
        needs_approval=needs_approval if isinstance(tool, Tool) and tool.needs_approval else False,
    )


# Tools that the client runs


def install_client_tools() -> None:
    """Wrap `get_all_tools` of the SDK's agents, once: the agents of a turn's own run have the client's tools too.

    An agent that is used as a tool has a run of its own, and does not have them.
    """
    wrap(SDK, AgentBase, "get_all_tools", "self, run_context", _with_client_tools)


def _with_client_tools(inner: Any) -> Any:
    async def get_all_tools(agent: AgentBase[Any], run_context: RunContextWrapper[Any]) -> list[SdkTool]:
        tools: list[SdkTool] = await inner(agent, run_context)
        run = Run.current()
        if run is None or run.path or not run.client_tools:
            return tools
        check_names({tool.name for tool in tools}, run.client_tools)
        return [*tools, *map(_function_tool, run.client_tools)]

    return get_all_tools
