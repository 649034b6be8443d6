"""Running a tool: within its time, within its length, and whatever it raises.

What a tool raises by accident may hold a password or a path: the model and the log get the name of the exception,
the server's log the rest. What it wants to be read, it raises as `ToolError`.
"""

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import msgspec
from msgspec import Struct
from pydantic import BaseModel

from turnwire.core.emit import emit
from turnwire.core.errors import ToolError, TurnEndedError
from turnwire.core.events import ToolProgressEvent
from turnwire.tools.declaration import BadArgumentsError, Function, Tool

logger = logging.getLogger("turnwire.tools")

# Threads of their own: a tool that hangs must not keep the store waiting for one.
_THREADS = ThreadPoolExecutor(32, thread_name_prefix="turnwire-tool")
_call_id: ContextVar[str | None] = ContextVar("turnwire_tool_call", default=None)


class ToolOutcome(Struct, frozen=True):
    """How a call ended: `result` is plain JSON for the log, `text` the same for the model."""

    success: bool
    result: Any
    text: str
    ms: float


async def run_tool(tool: Tool, args: dict[str, Any] | None, *, call_id: str | None = None) -> ToolOutcome:
    """Never raises for what the tool or the model did wrong: that is an outcome. `args` is None if they are not JSON.

    Raises CancelledError, and TurnEndedError from a tool that wrote to a turn that is over.
    """
    began = time.perf_counter()
    try:
        with running_call(call_id):
            value = plain(await _call(tool, args))
        # The standard library's JSON, because half a surrogate pair in what was found must not lose the rest.
        success, text = True, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except TurnEndedError:
        raise
    except Exception as error:
        success, text = False, why_it_failed(tool.name, error)
        value = text
    if len(text) > tool.max_output:
        text = value = _cut(text, tool.max_output)
    return ToolOutcome(success, value, text, round((time.perf_counter() - began) * 1000, 1))


@contextmanager
def running_call(call_id: str | None) -> Generator[None]:
    """Makes `progress` tell of this call in what is run inside."""
    token = _call_id.set(call_id)
    try:
        yield
    finally:
        _call_id.reset(token)


def set_running_call(call_id: str) -> None:
    """The same, for the rest of the current task and what is started from it: where a tool can only be watched."""
    _call_id.set(call_id)


def progress(text: str | None = None, fraction: float | None = None, data: Any = None) -> None:
    """Tells, from inside a tool, how far it is. Does nothing outside a turn."""
    call_id = _call_id.get()
    if call_id is not None:
        emit(ToolProgressEvent(call_id, text, fraction, data))


def plain(value: Any) -> Any:
    """The value as JSON can hold it; what it cannot hold is told as text."""
    return msgspec.to_builtins(value, enc_hook=_spell, str_keys=True)


def loggable(value: Any, max_output: int = 20_000) -> Any:
    """What a tool that is not ours gave, plain and no longer than fits into one event."""
    value = plain(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _cut(text, max_output) if len(text) > max_output else value


def _cut(text: str, length: int) -> str:
    return f"{text[:length]}… [cut here: {len(text):,} characters in all]"


def _spell(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


async def _call(tool: Tool, args: dict[str, Any] | None) -> Any:
    if args is None:
        raise BadArgumentsError("they are not a JSON object")
    checked = tool.arguments.check(args)
    limit = asyncio.timeout(tool.timeout)
    try:
        async with limit:
            if _is_async(tool.function):
                return await tool.function(**checked)
            value = await _call_in_thread(tool.function, checked)
            return await value if inspect.isawaitable(value) else value
    except TimeoutError:
        if limit.expired():
            raise ToolError(f"it took longer than {tool.timeout:g} seconds and was given up") from None
        raise


async def _call_in_thread(function: Function, args: dict[str, Any]) -> Any:
    context = copy_context()

    def call() -> Any:
        try:
            return context.run(function, **args)
        except StopIteration as error:
            # A future cannot hold one: whoever waits for it would wait for ever.
            raise RuntimeError("the tool raised StopIteration") from error

    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def why_it_failed(tool: str, error: Exception) -> str:
    """What the model and the log are told of an exception that a tool raised."""
    match error:
        case BadArgumentsError():
            return f"Error: the arguments of {tool} are wrong: {error}"
        case ToolError():
            return f"Error: {error}"
        case _:
            logger.error("the tool %r failed", tool, exc_info=error)
            return f"Error: the tool failed ({type(error).__name__})"
