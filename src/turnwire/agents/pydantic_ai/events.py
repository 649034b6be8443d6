"""Events of SDK runs: from the SDK's own events, and from hooks where the SDK has no event.

The SDK has no event for a reply without a finish reason (it reports `stop`), nor for a tool that raised, which ends the
run; only a `ToolError` is returned to the model.
"""

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from pydantic_ai import AgentStreamEvent, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai import messages as sdk
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from turnwire.agents.agent_paths import Path
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.pydantic_ai.approvals import EDITABLE, decide_calls
from turnwire.agents.pydantic_ai.continuation import begin_reply, our_tool, record_reply, recorded_reply, run_recorded
from turnwire.agents.pydantic_ai.messages import add_inputs
from turnwire.agents.pydantic_ai.options import with_tool_choice
from turnwire.core.errors import ToolError, TurnEndedError
from turnwire.core.journal.turn_journal import JournaledCall
from turnwire.core.log.events import (
    CustomEvent,
    Event,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.log.model_options import ModelOptions
from turnwire.models.errors import unfinished
from turnwire.tools.invocation import elapsed_ms, loggable, plain, running_call, tool_error_text

# The SDK's own control flow leaves a tool by these exceptions; they are no failures.
_CONTROL_FLOW = (ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed, TurnEndedError)


@dataclass
class RunListener(AbstractCapability[Any]):
    """Recorder of one run: it converts the SDK's events, and is a capability with hooks where the SDK has no event.

    `place` is the run's place in the turn's journal; `has_text` is True if the run has written text so far.
    """

    queue: EventQueue
    path: Path = ()
    place: str = ""
    has_text: bool = False
    model_options: ModelOptions = field(default_factory=ModelOptions)
    editable: frozenset[str] = frozenset()
    _begins_reply: bool = False
    _began: dict[str, float] = field(default_factory=dict[str, float])
    _took: dict[str, float] = field(default_factory=dict[str, float])
    _replayed: JournaledCall | None = None
    """The reply that is being read, if it comes from the journal."""

    def record(self, event: Event | str) -> None:
        self.queue.put(event)

    async def read(self, events: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
        """Record the events of one step of the run, and pass them on."""
        is_shown = self._replayed is not None and self._replayed.is_shown
        async for event in events:
            if is_shown and (text := _text_of(event)) is not None:
                self.has_text = self.has_text or bool(text)
            elif (
                isinstance(event, sdk.PartDeltaEvent)
                and isinstance(event.delta, sdk.TextPartDelta)
                and self.has_text
                and not self._begins_reply
            ):
                # The fast path: nearly every event is a piece of text that continues a reply.
                self.record(event.delta.content_delta)
            else:
                for converted in self.convert(event):
                    self.record(converted)
            await self.queue.wait_for_room()
            yield event
        if self._replayed is not None:
            replayed, self._replayed = self._replayed, None
            if not replayed.is_shown:
                await self.queue.flush()
                replayed.show()

    def read_result(self, result: AgentRunResult[Any]) -> None:
        """Record the answer of a run, if it was not streamed: text that a function made, or a value."""
        if not result.response.text:
            self._begins_reply = True
            output = result.output
            for piece in self._text(output if isinstance(output, str) else to_json(output).decode()):
                self.record(piece)

    def convert(self, event: AgentStreamEvent) -> Iterator[Event | str]:
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
            case _:
                pass

    def _text(self, text: str) -> Iterator[str]:
        if self._begins_reply and self.has_text:
            yield PARAGRAPH
        self._begins_reply, self.has_text = False, True
        yield text

    def _result(self, part: sdk.ToolReturnPart | sdk.NativeToolReturnPart) -> ToolResultEvent:
        call = part.tool_call_id
        began = self._began.pop(call, None)
        ms = self._took.pop(call, None) or (None if began is None else elapsed_ms(began))
        return ToolResultEvent(call, part.tool_name, part.outcome == "success", loggable(part.content), ms)

    # Hooks where the SDK has no event

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        if not self.path:  # Messages are for the turn's own agent.
            await self.queue.flush()
            await add_inputs(node, self.place or None)
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

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, handler: Any
    ) -> sdk.ModelResponse:
        journal = self.queue.journal
        request_context = with_tool_choice(self.model_options, request_context)
        if journal is None:
            return await handler(request_context)
        await self.queue.flush()
        with await begin_reply(journal, self.place, self.path, ctx, request_context) as call:
            if not call.is_live:
                self._replayed = call
                return recorded_reply(call)
            response: sdk.ModelResponse = await handler(request_context)
            await self.queue.flush()
            record_reply(call, response)
        return response

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: sdk.ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        ours = our_tool(tool_def)
        if ours is not None and not ctx.tool_call_approved and ours.requires_approval(args):
            # Before the call begins in the journal: it has not run when a person decides about it.
            raise ApprovalRequired(metadata={EDITABLE: ours.editable})
        await self.queue.flush()
        began = time.perf_counter()

        async def execute() -> Any:
            with running_call(call.tool_call_id):
                return await handler(args)

        try:
            if (journal := self.queue.journal) is None:
                return await execute()
            changes = self.queue.changes_of(ctx.deps)
            return await run_recorded(journal, self.place, self.path, call, tool_def, changes, execute)
        finally:
            self._took[call.tool_call_id] = elapsed_ms(began)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        if self.queue.journal is None:
            return None
        await self.queue.flush()
        return await decide_calls(requests, self.editable, self.path)

    async def on_tool_execute_error(
        self, ctx: RunContext[Any], *, call: sdk.ToolCallPart, tool_def: ToolDefinition, args: Any, error: Exception
    ) -> Any:
        if isinstance(error, _CONTROL_FLOW):
            raise error
        failure = tool_error_text(call.tool_name, error)
        if isinstance(error, ToolError):
            raise ToolFailed(failure) from error
        began = self._began.pop(call.tool_call_id, None)
        ms = None if began is None else elapsed_ms(began)
        self.record(ToolResultEvent(call.tool_call_id, call.tool_name, False, failure, ms))
        raise ToolError(f"the tool {call.tool_name!r} failed ({type(error).__name__})") from error


@dataclass
class SubAgentListener(RunListener):
    """Listener of a run that a tool starts: its events go into the log with the agent's path.

    The text of a run that answers with a value is for the code that started it, not for people.
    """

    writes_text: bool = True

    def record(self, event: Event | str) -> None:
        if isinstance(event, str) and not self.writes_text:
            return
        self.queue.put(
            TokenEvent(event, agent_path=self.path) if isinstance(event, str) else replace(event, agent_path=self.path)
        )

    async def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterator[AgentStreamEvent]:
        # With this hook the SDK streams the run, so that its text is in the log while it is written.
        async for event in self.read(stream):
            yield event


def _text_of(event: AgentStreamEvent) -> str | None:
    """Return the text of the answer in an event of a reply, "" for its reasoning, and None for any other event."""
    match event:
        case sdk.PartStartEvent(part=sdk.TextPart(content=text)):
            return text
        case sdk.PartDeltaEvent(delta=sdk.TextPartDelta(content_delta=text)):
            return text
        case sdk.PartStartEvent(part=sdk.ThinkingPart()) | sdk.PartDeltaEvent(delta=sdk.ThinkingPartDelta()):
            return ""
        case _:
            return None


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
