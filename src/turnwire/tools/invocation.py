"""Running a tool within its limits of time and output, whatever it raises.

The message of an unexpected exception may hold a password or a path, so the model and the turn's log get only the name
of the exception, and the server's log the rest. A message for the model is raised as `ToolError`.
"""

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import Struct
from pydantic import BaseModel

from turnwire.core.errors import ToolError, TurnEndedError
from turnwire.core.journal.waits import ClientTool, client_result, limited_by, result_text
from turnwire.core.log.emit import emit
from turnwire.core.log.events import ToolProgressEvent
from turnwire.tools.declaration import MAX_OUTPUT, BadArgumentsError, Function, Tool
from turnwire.tools.threads import call_in_thread

logger = logging.getLogger("turnwire.tools")

_call_id: ContextVar[str | None] = ContextVar("turnwire_tool_call", default=None)


class ToolOutcome(Struct, frozen=True):
    """The end of a call: `result` is JSON for the log, `text` the same for the model."""

    success: bool
    result: Any
    text: str
    ms: float


async def run_tool(tool: Tool, args: dict[str, Any] | None, *, call_id: str | None = None) -> ToolOutcome:
    """Run a tool call. An error of the tool or in the arguments is an outcome too. `args` is None for invalid JSON.

    Raise CancelledError, and TurnEndedError from a tool that wrote to a turn that is over.
    """
    began = time.perf_counter()
    try:
        with running_call(call_id):
            value = plain(await _call(tool, args))
        # The standard library's JSON, because msgspec refuses a lone surrogate.
        success, text = True, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except TurnEndedError:
        raise
    except Exception as error:
        success, text = False, tool_error_text(tool.name, error)
        value = text
    if len(text) > tool.max_output:
        text = value = _clip(text, tool.max_output)
    return ToolOutcome(success, value, text, elapsed_ms(began))


def elapsed_ms(began: float) -> float:
    """Return the milliseconds since a value of `time.perf_counter`, as events have them."""
    return round((time.perf_counter() - began) * 1000, 1)


async def run_client_tool(call_id: str, tool: str, args: dict[str, Any]) -> ToolOutcome:
    """Let the client run a call of one of its tools, and return its result as it was sent."""
    result = await client_result(call_id, tool, args)
    return ToolOutcome(result.success, result.result, result_text(result.result), 0.0)


async def run_any_tool(tool: Tool | ClientTool, args: dict[str, Any] | None, *, call_id: str | None) -> ToolOutcome:
    """Run a call of one of our tools, or let the client run a call of one of its own."""
    if isinstance(tool, Tool):
        return await run_tool(tool, args, call_id=call_id)
    if args is None:
        text = tool_error_text(tool.name, BadArgumentsError("they are not a JSON object"))
        return ToolOutcome(False, text, text, 0.0)
    return await run_client_tool(call_id or "", tool.name, args)


@contextmanager
def running_call(call_id: str | None) -> Generator[None]:
    """Attribute `progress` inside the block to this call."""
    token = _call_id.set(call_id)
    try:
        yield
    finally:
        _call_id.reset(token)


def set_running_call(call_id: str) -> None:
    """Attribute `progress` in the rest of the current task to this call, for SDKs that only report a call's start."""
    _call_id.set(call_id)


def running_call_id() -> str | None:
    """Return the id of the tool call that the current code belongs to."""
    return _call_id.get()


def progress(text: str | None = None, fraction: float | None = None, data: Any = None) -> None:
    """Report the progress of the running tool call. Do nothing outside a turn."""
    call_id = _call_id.get()
    if call_id is not None:
        emit(ToolProgressEvent(call_id, text, fraction, data))


def plain(value: Any) -> Any:
    """Return the value as plain JSON types, with `str` for the rest."""
    return msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)


def loggable(value: Any) -> Any:
    """Return the result of an SDK's own tool as plain JSON types, clipped to fit into one event."""
    value = plain(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _clip(text, MAX_OUTPUT) if len(text) > MAX_OUTPUT else value


def _clip(text: str, length: int) -> str:
    return f"{text[:length]}… [cut here: {len(text):,} characters in all]"


def _encode(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


async def _call(tool: Tool, args: dict[str, Any] | None) -> Any:
    if args is None:
        raise BadArgumentsError("they are not a JSON object")
    checked = tool.arguments.check(args)
    limit = asyncio.timeout(tool.timeout)
    try:
        async with limit:
            with limited_by(limit):
                return await _call_function(tool.function, checked)
    except TimeoutError:
        if limit.expired():
            raise ToolError(f"it took longer than {tool.timeout:g} seconds and was given up") from None
        raise


async def _call_function(function: Function, args: dict[str, Any]) -> Any:
    if _is_async(function):
        return await function(**args)
    value = await call_in_thread(function, **args)
    return await value if inspect.isawaitable(value) else value


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def tool_error_text(tool: str, error: Exception) -> str:
    """Return the error text of a failed tool for the model and the turn's log."""
    match error:
        case BadArgumentsError():
            return f"Error: the arguments of {tool} are wrong: {error}"
        case ToolError():
            return f"Error: {error}"
        case _:
            logger.error("the tool %r raised an exception", tool, exc_info=error)
            return f"Error: the tool failed ({type(error).__name__})"
