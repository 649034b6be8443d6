"""Events of SDK runs: the SDK's own events, and what it reports in none of them.

The SDK has no event for a reply without a finish reason (it reports `stop`), nor for a tool that raised, which ends the
run; only a `ToolError` is returned to the model.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from pydantic_ai import AgentRunResultEvent, AgentStreamEvent, DeferredToolRequests, RunContext
from pydantic_ai import messages as sdk
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from turnwire.agents.agent_paths import Path
from turnwire.agents.pydantic_ai.inputs import add_inputs
from turnwire.core.emit import emit, wait_for_room
from turnwire.core.errors import ToolError, TurnEndedError
from turnwire.core.events import (
    CustomEvent,
    Event,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.history import PARAGRAPH
from turnwire.models.errors import unfinished
from turnwire.tools.invocation import loggable, plain, running_call, tool_error_text

# The SDK's own control flow leaves a tool by these exceptions; they are no failures.
_CONTROL_FLOW = (ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed, TurnEndedError)


@dataclass
class RunListener(AbstractCapability[Any]):
    """Converter of one run's events, and capability with hooks where the SDK has no event.

    `deferred` is the result of a run that ended in deferred tools; `has_text` is True if it has text so far.
    """

    deferred: AgentRunResult[Any] | None = None
    path: Path = ()
    has_text: bool = False
    _begins_reply: bool = False
    _pending: deque[Event | str] = field(default_factory=deque[Event | str])
    _began: dict[str, float] = field(default_factory=dict[str, float])
    _took: dict[str, float] = field(default_factory=dict[str, float])
    _unread: int = 0
    _all_read: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, event: Event | str) -> None:
        """Add an event that the SDK has none for."""
        self._pending.append(event)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def take_pending(self) -> Iterator[Event | str]:
        """Yield the events that the hooks recorded since the last call."""
        while self._pending:
            yield self._pending.popleft()

    def note_read(self) -> None:
        """Note that the event which was read last is in the log."""
        self._unread -= 1
        if self._unread <= 0:
            self._all_read.set()

    async def flush(self) -> None:
        """Wait until the run's events are in the log."""
        while self._unread > 0:
            self._all_read.clear()
            await self._all_read.wait()

    def convert(self, event: AgentStreamEvent | AgentRunResultEvent[Any]) -> Iterator[Event | str]:
        """Yield our events for an event of the SDK."""
        if isinstance(event, sdk.PartStartEvent) and event.index == 0:
            self._begins_reply = True
        match event:
            # The start of a part carries its first piece.
            case (
                sdk.PartStartEvent(part=sdk.TextPart(content=text))
                | sdk.PartDeltaEvent(delta=sdk.TextPartDelta(content_delta=text))
            ) if text:
                yield from self._text(text)
            case sdk.PartStartEvent(part=sdk.ThinkingPart(content=text)) if text:
                yield ReasoningEvent(content=text)
            case sdk.PartDeltaEvent(delta=sdk.ThinkingPartDelta(content_delta=text)) if text:
                yield ReasoningEvent(content=text)
            case sdk.FunctionToolCallEvent(part=part) | sdk.PartEndEvent(part=sdk.NativeToolCallPart() as part):
                self._began[part.tool_call_id] = time.perf_counter()
                yield ToolCallEvent(part.tool_call_id, part.tool_name, _arguments(part))
            case sdk.FunctionToolResultEvent(part=part) | sdk.PartStartEvent(part=sdk.NativeToolReturnPart() as part):
                yield self._result(part)
            case sdk.CustomEvent(name=name):
                yield CustomEvent(name=name, data=plain(event.to_payload()))
            case AgentRunResultEvent(result=result):
                if isinstance(result.output, DeferredToolRequests):
                    self.deferred = result
                # Text was streamed; a structured output, or one made by a function, was not.
                elif not result.response.text:
                    self._begins_reply = True
                    output = result.output
                    yield from self._text(output if isinstance(output, str) else to_json(output).decode())
            case _:
                pass

    @property
    def is_within_reply(self) -> bool:
        """Return True if the next piece of text continues a reply of the model."""
        return self.has_text and not self._begins_reply

    def _text(self, text: str) -> Iterator[str]:
        if self._begins_reply and self.has_text:
            yield PARAGRAPH
        self._begins_reply, self.has_text = False, True
        yield text

    def _result(self, part: sdk.ToolReturnPart | sdk.NativeToolReturnPart) -> ToolResultEvent:
        call = part.tool_call_id
        began = self._began.pop(call, None)
        ms = self._took.pop(call, None) or (None if began is None else _since(began))
        return ToolResultEvent(call, part.tool_name, part.outcome == "success", loggable(part.content), ms)

    async def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterator[AgentStreamEvent]:
        async for event in stream:
            self._unread += 1
            yield event

    # Hooks where the SDK has no event

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        await self.flush()
        await add_inputs(node, None)
        return node

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: sdk.ModelResponse
    ) -> sdk.ModelResponse:
        if response.usage.has_values():
            self.record(_usage_event(response))
        # Here and not at the end of the run: the tools of a truncated reply must not run.
        if not _is_complete(response):
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
        failure = tool_error_text(call.tool_name, error)
        if isinstance(error, ToolError):
            raise ToolFailed(failure) from error
        began = self._began.pop(call.tool_call_id, None)
        ms = None if began is None else _since(began)
        self.record(ToolResultEvent(call.tool_call_id, call.tool_name, False, failure, ms))
        raise ToolError(f"the tool {call.tool_name!r} failed ({type(error).__name__})") from error


@dataclass
class SubAgentListener(RunListener):
    """Listener of a run that a tool starts: its events go into the log with the agent's path.

    The text of a run that answers with a value is for the code that started it, not for people.
    """

    writes_text: bool = True

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        return node  # Messages are for the turn's own agent.

    def record(self, event: Event | str) -> None:
        if isinstance(event, str) and not self.writes_text:
            return
        emit(
            TokenEvent(event, agent_path=self.path) if isinstance(event, str) else replace(event, agent_path=self.path)
        )

    async def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterator[AgentStreamEvent]:
        # With this hook the SDK streams the run, so that its text is in the log while it is written.
        async for event in stream:
            for converted in self.convert(event):
                self.record(converted)
            await wait_for_room()
            yield event


def _is_complete(response: sdk.ModelResponse) -> bool:
    """Return True if the model reported that it finished."""
    if response.finish_reason in ("length", "content_filter"):
        return False
    # Local models report no finish reason. A server's own reason is in the details only: the SDK invents a missing one.
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
