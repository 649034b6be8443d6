"""The SDK's requests, replies and tool calls in the form in which the turn's journal keeps them.

After a crash the agent runs again from its start. The methods of its models that call the provider and that run a tool
are wrapped already (see `runner`). A tool that runs another agent is a call like any other, and the calls of that agent
are recorded inside it. What a tool has written to the session's state is recorded with its result.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

from agno.models.message import Message
from agno.tools.function import FunctionCall, FunctionExecutionResult
from agno.utils.timer import Timer

from turnwire.agents.agno.tools import guarded, tool_of
from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.run_recorder import ToolStep
from turnwire.tools.invocation import plain

_REPLY = ("content", "reasoning_content", "redacted_reasoning_content", "tool_calls", "provider_data")
Ended = tuple[Any, Timer, FunctionCall, FunctionExecutionResult]
"""What the SDK's models return for a tool call."""


def dump_request(messages: list[Message]) -> list[Any]:
    return [
        {"role": message.role, "content": plain(message.content), "calls": plain(message.tool_calls)}
        for message in messages
        if message.role not in ("system", "developer")
    ]


def dump_reply(message: Message) -> dict[str, Any]:
    return json.loads(json.dumps({name: getattr(message, name) for name in _REPLY}, default=str))


def load_reply(recorded: dict[str, Any], message: Message) -> None:
    """Write a recorded reply into the message that the SDK has prepared for it."""
    for name in _REPLY:
        setattr(message, name, recorded[name])


def session_state(function_call: FunctionCall) -> dict[str, Any] | None:
    """Return the state of the session, which all tools of a run share."""
    context: Any = function_call.function._run_context  # pyright: ignore[reportPrivateUsage]
    state: Any = getattr(context, "session_state", None)
    return cast("dict[str, Any]", state) if isinstance(state, dict) else None


class AgnoStep(ToolStep[Ended]):
    """One tool call. `changes` records the session's state."""

    def __init__(
        self,
        function_call: FunctionCall,
        execute: Callable[[FunctionCall], Awaitable[Ended]],
        changes: ContextChanges | None,
    ) -> None:
        function = function_call.function
        args = plain(function_call.arguments or {})
        super().__init__(function_call.call_id or "", function.name, args, tool_of(function))
        self._function_call = function_call
        self._execute = execute
        self._changes = changes

    async def run(self, args: dict[str, Any]) -> Ended:
        if args is not self.args:
            self._function_call.arguments = args
        self._function_call.function = guarded(self._function_call.function)
        return await self._execute(self._function_call)

    def fail(self, text: str) -> Ended:
        return self._end(FunctionExecutionResult(status="failure", error=text))

    def dump(self, outcome: Ended) -> dict[str, Any]:
        result, changes = outcome[3], self._changes and self._changes.take()
        return {"status": result.status, "result": plain(result.result), "error": result.error, "changes": changes}

    async def load(self, recorded: dict[str, Any]) -> Ended:
        fields = {name: recorded[name] for name in ("status", "result", "error")}
        if self._changes is not None:
            self._changes.restore(recorded["changes"])
            fields["updated_session_state"] = self._changes.value
        return self._end(FunctionExecutionResult(**fields))

    def _end(self, result: FunctionExecutionResult) -> Ended:
        """Return what the SDK's models return for a call that was not run."""
        self._function_call.result, self._function_call.error = result.result, result.error
        timer = Timer()
        timer.start()
        timer.stop()
        return result.status == "success", timer, self._function_call, result


def show_outcome(outcome: Ended) -> tuple[bool, Any]:
    """Return whether a call has succeeded, and its result for the log."""
    success, _, _, result = outcome
    value = result.result if result.status == "success" else result.error
    return success is True, value if success in (True, False) else str(success)
