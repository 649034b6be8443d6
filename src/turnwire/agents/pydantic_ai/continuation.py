"""The SDK's requests, replies and tool calls in the form in which the turn's journal keeps them.

After a crash the agent runs again from its start. The listener of each run (see `events`) is a capability with the
hooks `wrap_model_request` and `wrap_tool_execute`, which stand between the SDK and each call. A tool that runs another
agent is a call like any other, and the calls of that agent are recorded inside it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from msgspec import Struct
from pydantic import TypeAdapter
from pydantic_ai import ModelMessagesTypeAdapter, ToolReturn
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
from pydantic_core import PydanticSerializationError

from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.run_recorder import ToolStep
from turnwire.core.errors import ToolError
from turnwire.tools import Tool
from turnwire.tools.invocation import plain

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


def dump_request(messages: list[sdk.ModelMessage]) -> Any:
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json", exclude=_UNSTABLE_FIELDS)


def dump_reply(response: sdk.ModelResponse) -> Any:
    return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]


def load_reply(recorded: Any) -> sdk.ModelResponse:
    (response,) = ModelMessagesTypeAdapter.validate_python([recorded])
    assert isinstance(response, sdk.ModelResponse)
    return response


class Ended(Struct, frozen=True):
    """The end of a tool call: what it has returned, or the exception by which it told the SDK how it ended."""

    result: Any = None
    error: Exception | None = None


class PydanticStep(ToolStep[Ended]):
    """One tool call. `changes` records the dependencies of the run."""

    def __init__(
        self,
        part: sdk.ToolCallPart,
        ours: Tool | None,
        changes: ContextChanges | None,
        execute: Callable[[], Awaitable[Any]],
    ) -> None:
        super().__init__(part.tool_call_id, part.tool_name, plain(part.args_as_dict()), ours)
        self._changes = changes
        self._execute = execute

    async def run(self, args: dict[str, Any]) -> Ended:
        try:
            return Ended(await self._execute())
        except Exception as error:
            if _describe(error) is None:
                raise
            return Ended(error=error)

    def fail(self, text: str) -> Ended:
        return Ended(error=ToolFailed(text))

    def dump(self, outcome: Ended) -> dict[str, Any]:
        recorded = _dump(outcome.result) if outcome.error is None else (_describe(outcome.error) or {})
        changes = self._changes and self._changes.take()
        return recorded | ({"changes": changes} if changes else {})

    async def load(self, recorded: dict[str, Any]) -> Ended:
        if self._changes is not None:
            self._changes.restore(recorded.get("changes"))
        return _restore(recorded)


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


_EXCEPTIONS: dict[str, Callable[[Any], Exception]] = {
    "retry": ModelRetry,
    "failed": ToolFailed,
    "approval": ApprovalRequired,
    "deferred": CallDeferred,
    "error": ToolError,
}


def _restore(recorded: dict[str, Any]) -> Ended:
    ((ending, value),) = ((name, value) for name, value in recorded.items() if name != "changes")
    if ending in _EXCEPTIONS:
        return Ended(error=_EXCEPTIONS[ending](value))
    return Ended((_RETURN if ending == "return" else _CONTENT).validate_python(value))


def joined(parts: Sequence[sdk.ModelResponsePart], kind: type[sdk.TextPart] | type[sdk.ThinkingPart]) -> str:
    """Return the text of all parts of a kind."""
    return "".join(part.content for part in parts if isinstance(part, kind))
