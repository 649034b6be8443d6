"""What happens in a run: the SDK's own events, and what is in none of them.

Two things are not: an answer that ended without a finish reason (the SDK reports `stop` for it), and a tool that
raised. With that the SDK ends the run; only what a tool raises as `ToolError` its model reads.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import AgentRunResultEvent, AgentStreamEvent, DeferredToolRequests, RunContext
from pydantic_ai import messages as sdk
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from turnwire.core.errors import ToolError, TurnEndedError
from turnwire.core.events import CustomEvent, Event, ReasoningEvent, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.models.errors import unfinished
from turnwire.tools.invocation import loggable, plain, running_call, why_it_failed

# How the SDK's own steps leave a tool: not failures, and not ours to answer.
_CONTROL_FLOW = (ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed, TurnEndedError)


@dataclass
class RunListener(AbstractCapability[Any]):
    """Reads the run's events, and sits where no event tells what happens. One for each run.

    `deferring` is the run's result if it has ended in requests.
    """

    deferring: AgentRunResult[Any] | None = None
    _heard: deque[Event] = field(default_factory=deque[Event])
    _began: dict[str, float] = field(default_factory=dict[str, float])
    _took: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def has_heard(self) -> bool:
        return bool(self._heard)

    def heard(self) -> Iterator[Event]:
        while self._heard:
            yield self._heard.popleft()

    # What the SDK tells

    def read(self, event: AgentStreamEvent | AgentRunResultEvent[Any]) -> Iterator[Event | str]:
        """All but the pieces of the answer after the first of a part."""
        match event:
            # A part starts with its first piece.
            case sdk.PartStartEvent(part=sdk.TextPart(content=text)) if text:
                yield text
            case sdk.PartStartEvent(part=sdk.ThinkingPart(content=thought)) if thought:
                yield ReasoningEvent(content=thought)
            case sdk.PartDeltaEvent(delta=sdk.ThinkingPartDelta(content_delta=thought)) if thought:
                yield ReasoningEvent(content=thought)
            case sdk.FunctionToolCallEvent(part=part) | sdk.PartEndEvent(part=sdk.NativeToolCallPart() as part):
                self._began[part.tool_call_id] = time.perf_counter()
                yield ToolCallEvent(part.tool_call_id, part.tool_name, _arguments(part))
            case sdk.FunctionToolResultEvent(part=part) | sdk.PartStartEvent(part=sdk.NativeToolReturnPart() as part):
                yield self._result(part)
            case sdk.CustomEvent(name=name):
                yield CustomEvent(name=name, data=plain(event.to_payload()))
            case AgentRunResultEvent(result=result):
                if isinstance(result.output, DeferredToolRequests):
                    self.deferring = result
                # An answer that is a value, or that a function made, has not been told yet.
                elif not result.response.text:
                    yield result.output if isinstance(result.output, str) else to_json(result.output).decode()
            case _:
                pass

    def _result(self, part: sdk.ToolReturnPart | sdk.NativeToolReturnPart) -> ToolResultEvent:
        call = part.tool_call_id
        began = self._began.pop(call, None)
        ms = self._took.pop(call, None) or (None if began is None else _since(began))
        return ToolResultEvent(call, part.tool_name, part.outcome == "success", loggable(part.content), ms)

    # What it does not tell

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: sdk.ModelResponse
    ) -> sdk.ModelResponse:
        if response.usage.has_values():
            self._heard.append(_usage_event(response))
        # Here, and not at the end of the run: the tools that half an answer calls must not run.
        if not _is_whole(response):
            raise unfinished(response.finish_reason)
        return response

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: sdk.ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        began = time.perf_counter()
        try:
            with running_call(call.tool_call_id):
                return await handler(args)
        finally:
            self._took[call.tool_call_id] = _since(began)

    async def on_tool_execute_error(
        self, ctx: RunContext[Any], *, call: sdk.ToolCallPart, tool_def: ToolDefinition, args: Any, error: Exception
    ) -> Any:
        if isinstance(error, _CONTROL_FLOW):
            raise error
        why = why_it_failed(call.tool_name, error)
        if isinstance(error, ToolError):
            raise ToolFailed(why) from error
        began = self._began.pop(call.tool_call_id, None)
        ms = None if began is None else _since(began)
        self._heard.append(ToolResultEvent(call.tool_call_id, call.tool_name, False, why, ms))
        raise ToolError(f"the tool {call.tool_name!r} failed ({type(error).__name__})") from error


def _is_whole(response: sdk.ModelResponse) -> bool:
    """Whether the model has said that it was finished."""
    if response.finish_reason in ("length", "content_filter"):
        return False
    # Models that run here say nothing of the kind. A server's own word is among the details, and only there:
    # where it is missing, the SDK makes one up.
    return response.provider_url is None or "finish_reason" in (response.provider_details or {})


def _usage_event(response: sdk.ModelResponse) -> UsageEvent:
    usage = response.usage
    return UsageEvent(
        model=response.model_name,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cache_read_tokens or None,
        reasoning_tokens=usage.details.get("reasoning_tokens") or None,
    )


def _arguments(part: sdk.BaseToolCallPart) -> dict[str, Any]:
    return plain(part.args_as_dict())


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)
