"""Continuation of SDK runs after a crash: replies of models and results of tools come from the turn's journal.

The agent runs again from its start. The methods of its models that call the provider and that run a tool are wrapped
already (see `runner`). A tool that runs another agent is a call like any other, and the calls of that agent are
recorded inside it. What a tool has written to the session's state is recorded with its result.
"""

import json
from typing import Any, cast

from agno.models.base import Model
from agno.models.message import Message
from agno.tools.function import FunctionCall, FunctionExecutionResult
from agno.utils.timer import Timer

from turnwire.agents.context_changes import ContextChanges
from turnwire.core.journal.turn_journal import JournaledCall, TurnJournal, fingerprint
from turnwire.core.log.events import Usage
from turnwire.tools.invocation import plain

_REPLY = ("content", "reasoning_content", "redacted_reasoning_content", "tool_calls", "provider_data")
Ended = tuple[Any, Timer, FunctionCall, FunctionExecutionResult]
"""What the SDK's models return for a tool call."""


async def begin_reply(
    journal: TurnJournal, place: str, path: tuple[str, ...], agent: str, model: Model, messages: list[Message]
) -> JournaledCall:
    """Begin a model call of a run. Everything before it must be in the log."""
    request = [
        {"role": message.role, "content": plain(message.content), "calls": plain(message.tool_calls)}
        for message in messages
        if message.role not in ("system", "developer")
    ]
    return await journal.begin_model(place, names=(agent, model.id), fingerprint=fingerprint(request), agent_path=path)


def record_reply(call: JournaledCall, message: Message, usage: Usage | None) -> None:
    """Record a reply, whose text must be in the log."""
    fields = {name: getattr(message, name) for name in _REPLY}
    call.finish(json.loads(json.dumps(fields, default=str)), usage=usage)


def restore_reply(call: JournaledCall, message: Message) -> None:
    """Write a recorded reply into the message that the SDK has prepared for it."""
    for name in _REPLY:
        setattr(message, name, call.result[name])


def record_result(call: JournaledCall, result: FunctionExecutionResult, changes: dict[str, Any] | None) -> None:
    """Record the result of a tool, with its changes of the session's state."""
    recorded = {"status": result.status, "result": plain(result.result), "error": result.error, "changes": changes}
    call.finish(recorded)


def restore_result(call: JournaledCall, function_call: FunctionCall, changes: ContextChanges | None) -> Ended:
    recorded: dict[str, Any] = call.result
    if changes is not None:
        changes.restore(recorded["changes"])
    result = FunctionExecutionResult(
        status=recorded["status"],
        result=recorded["result"],
        error=recorded["error"],
        updated_session_state=None if changes is None else changes.value,
    )
    return ended(function_call, result)


def session_state(function_call: FunctionCall) -> dict[str, Any] | None:
    """Return the state of the session, which all tools of a run share."""
    context: Any = getattr(function_call.function, "_run_context", None)
    state: Any = getattr(context, "session_state", None)
    return cast("dict[str, Any]", state) if isinstance(state, dict) else None


def ended(function_call: FunctionCall, result: FunctionExecutionResult) -> Ended:
    """Return what the SDK's models return for a call that was not run."""
    function_call.result, function_call.error = result.result, result.error
    timer = Timer()
    timer.start()
    timer.stop()
    return result.status == "success", timer, function_call, result
