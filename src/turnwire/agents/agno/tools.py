"""Our tools, and those of a turn's client, as functions of the SDK.

agent = Agent(model=OpenAIChat("gpt-5-mini"), tools=agno_tools([weather, delete_file]))
"""

import functools
import inspect
from collections.abc import Iterable
from copy import copy
from typing import Any

from agno.exceptions import AgentRunException
from agno.tools.function import Function as SdkFunction
from pydantic import ValidationError

from turnwire.core.errors import AgentError, TurnEndedError
from turnwire.core.journal.waits import ClientTool
from turnwire.tools import Tool
from turnwire.tools.declaration import BadArgumentsError, Function, as_tool
from turnwire.tools.invocation import run_any_tool, running_call_id, tool_error_text

_TOOL = "turnwire_tool"


class _ToolFailure(Exception):
    """The failure of a tool, with the text for the model and the log."""


def agno_tools(tools: Iterable[Tool | Function]) -> list[SdkFunction]:
    """Convert tools to the SDK's functions, which keep their limits, schema and `needs_approval`."""
    return [sdk_function(as_tool(item)) for item in tools]


def sdk_function(tool: Tool | ClientTool) -> SdkFunction:
    """Return one of our tools, or of the client's, as a function of the SDK."""

    async def call(**args: Any) -> Any:
        outcome = await run_any_tool(tool, args, call_id=running_call_id())
        if not outcome.success:
            raise _ToolFailure(outcome.text)
        return outcome.result if isinstance(tool, Tool) else outcome.text

    if isinstance(tool, Tool):
        setattr(call, _TOOL, tool)
    return SdkFunction(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        entrypoint=call,
        skip_entrypoint_processing=True,
    )


def tool_of(function: SdkFunction) -> Tool | None:
    """Return our tool behind a function of the SDK."""
    return getattr(_entrypoint(function), _TOOL, None)


def _entrypoint(function: SdkFunction) -> Any:
    return function.entrypoint  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


# The SDK gives the model the text of whatever a tool raises


def guarded(function: SdkFunction) -> SdkFunction:
    """Return the same function, whose exceptions have a text that is safe for the model and the log."""
    entrypoint = _entrypoint(function)
    if inspect.isasyncgenfunction(entrypoint) or inspect.isgeneratorfunction(entrypoint) or entrypoint is None:
        return function

    @functools.wraps(entrypoint)
    async def call_async(*args: Any, **options: Any) -> Any:
        try:
            return await entrypoint(*args, **options)
        except Exception as error:
            raise _safe(function.name, error) from error

    @functools.wraps(entrypoint)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return entrypoint(*args, **options)
        except Exception as error:
            raise _safe(function.name, error) from error

    return changed(function, entrypoint=call_async if inspect.iscoroutinefunction(entrypoint) else call)


def changed(function: SdkFunction, **fields: Any) -> SdkFunction:
    """Return a copy of a function for one call, with other fields: the SDK's own object is shared by all runs."""
    result = copy(function)
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def _safe(tool: str, error: Exception) -> Exception:
    match error:
        case AgentRunException() | TurnEndedError() | _ToolFailure():
            return error
        case AgentError():
            return _ToolFailure(f"Error: {error}")
        case ValidationError():
            problems = "; ".join(f"{_name(each['loc'])}: {each['msg']}" for each in error.errors(include_url=False))
            return _ToolFailure(tool_error_text(tool, BadArgumentsError(problems)))
        case _:
            return _ToolFailure(tool_error_text(tool, error))


def _name(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))
