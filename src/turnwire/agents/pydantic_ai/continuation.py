"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. The listener of each run (see `events`) is a capability with the hooks
`wrap_model_request` and `wrap_tool_execute`, which stand between the SDK and each call. A tool that runs another agent
is a call like any other, and the calls of that agent are recorded inside it.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai import ModelMessagesTypeAdapter, RunContext, ToolReturn
from pydantic_ai import messages as sdk
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_core import PydanticSerializationError

from turnwire.agents.context_changes import ContextChanges
from turnwire.core.errors import ToolError
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError, TurnJournal, fingerprint
from turnwire.core.log.events import Usage
from turnwire.tools import Tool
from turnwire.tools.invocation import plain

OUR_TOOL = "turnwire_tool"
"""The key of one of our own tools in the metadata of its definition."""
# Fields of messages that differ between two runs with the same calls.
_UNSTABLE = {
    "timestamp",
    "run_id",
    "conversation_id",
    "provider_response_id",
    "usage",
    "metadata",
    "workspace_ref",
    "model_id",
    "provider_url",
}
_UNSTABLE_FIELDS = {"__all__": {**dict.fromkeys(_UNSTABLE, True), "parts": {"__all__": {"timestamp"}}}}
_CONTENT: TypeAdapter[Any] = TypeAdapter(sdk.ToolReturnContent)
_RETURN: TypeAdapter[ToolReturn[Any]] = TypeAdapter(ToolReturn[Any])


# Models


async def begin_reply(
    journal: TurnJournal, place: str, path: tuple[str, ...], ctx: RunContext[Any], request: Any
) -> JournaledCall:
    """Begin a model call of a run. Everything before it must be in the log."""
    agent = ctx.agent.name if ctx.agent is not None else None
    messages = ModelMessagesTypeAdapter.dump_python(request.messages, mode="json", exclude=_UNSTABLE_FIELDS)
    names = (agent or "", request.model.model_name)
    return await journal.begin_model(place, names=names, fingerprint=fingerprint(messages), agent_path=path)


def record_reply(call: JournaledCall, response: sdk.ModelResponse) -> None:
    """Record a reply, whose text must be in the log."""
    usage = response.usage
    spent = Usage(usage.input_tokens, usage.output_tokens) if usage.has_values() else None
    call.finish(ModelMessagesTypeAdapter.dump_python([response], mode="json")[0], usage=spent)


def recorded_reply(call: JournaledCall) -> sdk.ModelResponse:
    (response,) = ModelMessagesTypeAdapter.validate_python([call.result])
    assert isinstance(response, sdk.ModelResponse)
    return response


# Tools


def our_tool(tool_def: ToolDefinition) -> Tool | None:
    """Return the tool of `pydantic_tools` with this definition."""
    return (tool_def.metadata or {}).get(OUR_TOOL)


async def run_recorded(
    journal: TurnJournal,
    place: str,
    path: tuple[str, ...],
    part: sdk.ToolCallPart,
    tool_def: ToolDefinition,
    changes: ContextChanges | None,
    execute: Callable[[], Awaitable[Any]],
) -> Any:
    """Run a tool, or return what it returned, or raise what it raised, before the crash."""
    try:
        call = await journal.begin_tool(
            place,
            part.tool_call_id,
            part.tool_name,
            plain(part.args_as_dict()),
            agent_path=path,
            repeatable=(ours := our_tool(tool_def)) is not None and ours.idempotent,
        )
    except ToolDeniedError as denied:
        raise ToolFailed(str(denied)) from None
    with call:
        if not call.is_live:
            if changes is not None:
                changes.restore(call.result.get("changes"))
            return _restore(call.result)
        try:
            result = await execute()
        except Exception as error:
            if (ending := _describe(error)) is not None:
                call.finish(ending | _taken(changes))
            raise
        call.finish(_dump(result) | _taken(changes))
    return result


def _taken(changes: ContextChanges | None) -> dict[str, Any]:
    taken = changes.take() if changes is not None else None
    return {"changes": taken} if taken else {}


def _dump(result: Any) -> dict[str, Any]:
    try:
        if isinstance(result, ToolReturn):
            return {"return": _RETURN.dump_python(cast("Any", result), mode="json", fallback=str)}
        return {"value": _CONTENT.dump_python(result, mode="json", fallback=str)}
    except PydanticSerializationError:
        return {"value": result}  # The journal notes that this cannot be recorded.


def _describe(error: Exception) -> dict[str, Any] | None:
    """Return how a tool ended by an exception, or None if it has not ended: the turn was stopped."""
    match error:
        case ToolRetryError():
            # The SDK turns a `ModelRetry` into this error and counts the retry; it must do both again.
            return {"retry": error.__cause__.message if isinstance(error.__cause__, ModelRetry) else str(error)}
        case ModelRetry():
            return {"retry": error.message}
        case ToolFailedError():
            return {"failed": error.__cause__.message if isinstance(error.__cause__, ToolFailed) else str(error)}
        case ToolFailed():
            return {"failed": error.message}
        case ApprovalRequired():
            return {"approval": plain(error.metadata)}
        case CallDeferred():
            return {"deferred": plain(error.metadata)}
        case SkipToolExecution():
            return _dump(error.result)
        case ToolError():
            return {"error": str(error)}
        case _:
            return None


def _restore(recorded: dict[str, Any]) -> Any:
    ((ending, value),) = ((name, value) for name, value in recorded.items() if name != "changes")
    match ending:
        case "retry":
            raise ModelRetry(value)
        case "failed":
            raise ToolFailed(value)
        case "approval":
            raise ApprovalRequired(value)
        case "deferred":
            raise CallDeferred(value)
        case "error":
            raise ToolError(value)
        case "return":
            return _RETURN.validate_python(value)
        case _:
            return _CONTENT.validate_python(value)
