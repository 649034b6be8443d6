"""Events of SDK runs: from the SDK's own events, and from hooks where the SDK has no event.

The SDK has no event for a reply without a finish reason (it reports `stop`), nor for a tool that raised, which ends the
run; only a `ToolError` is returned to the model.
"""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import nullcontext
from functools import partial
from typing import Any

from pydantic_ai import (
    AgentStreamEvent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRequestNode,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai import messages as sdk
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import ToolDefinition

from turnwire.agents.agent_paths import Path
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.pydantic_ai.continuation import PydanticStep, dump_reply, dump_request, joined, load_reply
from turnwire.agents.pydantic_ai.options import with_tool_choice
from turnwire.agents.pydantic_ai.tools import our_tool
from turnwire.agents.run_recorder import RunRecorder
from turnwire.core.errors import AgentError, ToolError, TurnEndedError
from turnwire.core.log.events import CustomEvent, UsageEvent
from turnwire.models.errors import unfinished
from turnwire.tools.invocation import plain, running_call, tool_error_text

# The SDK's own control flow leaves a tool by these exceptions; they are no failures.
_CONTROL_FLOW = (ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed, TurnEndedError)
_EDITABLE = "turnwire_editable"
"""The key in the metadata of a request for one of our own tools whose arguments a person may change."""


class RunListener(RunRecorder, AbstractCapability[Any]):
    """Recorder of one run: a capability that reads the SDK's events, with hooks where the SDK has no event."""

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        super().__init__(queue, path, place)
        self._is_repeated = False
        """True while the events of a reply are read that comes from the journal."""

    async def wrap_run_event_stream(
        self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterator[AgentStreamEvent]:
        """Record the events of one step of the run, and pass them on. With this hook the SDK streams the run."""
        is_repeated, self._is_repeated = self._is_repeated, False
        async for event in stream:
            self._read(event, is_repeated)
            await self.queue.wait_for_room()
            yield event

    def _read(self, event: AgentStreamEvent, is_repeated: bool) -> None:
        match event:
            # The start of a part carries its first piece.
            case (
                sdk.PartDeltaEvent(delta=sdk.TextPartDelta(content_delta=text))
                | sdk.PartStartEvent(part=sdk.TextPart(content=text))
            ):
                if not is_repeated:
                    self.write(text)
            case (
                sdk.PartDeltaEvent(delta=sdk.ThinkingPartDelta(content_delta=text))
                | sdk.PartStartEvent(part=sdk.ThinkingPart(content=text))
            ):
                if not is_repeated:
                    self.think(text)
            case sdk.FunctionToolCallEvent(part=part) | sdk.PartEndEvent(part=sdk.NativeToolCallPart() as part):
                self.begin_call(part.tool_call_id, part.tool_name, plain(part.args_as_dict()))
            case sdk.FunctionToolResultEvent(part=part) | sdk.PartStartEvent(part=sdk.NativeToolReturnPart() as part):
                self.end_call(part.tool_call_id, part.tool_name, part.outcome == "success", part.content)
            case sdk.CustomEvent(name=name):
                self.put(CustomEvent(name=name, data=plain(event.to_payload())))
            case _:
                pass

    def read_result(self, result: AgentRunResult[Any]) -> None:
        """Record the answer of a run, if it was not streamed: text that a function made, or a value."""
        if not result.response.text:
            self.write_reply(result.output)

    # Hooks where the SDK has no event

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        request: sdk.ModelRequest | None = node.request if isinstance(node, ModelRequestNode) else None
        if request is not None:
            # As parts of the request, the messages stay in the SDK's history.
            request.parts = [*request.parts, *map(sdk.UserPromptPart, await self.take_inputs())]
        return node  # pyright: ignore[reportUnknownVariableType]

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, response: sdk.ModelResponse
    ) -> sdk.ModelResponse:
        if (usage := _usage(response)) is not None:
            self.put(usage)
        # Here and not at the end of the run: the tools of a truncated reply must not run.
        if not _is_complete(response):
            raise unfinished(response.finish_reason)
        return response

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, handler: Any
    ) -> sdk.ModelResponse:
        request = with_tool_choice(self.options, self.has_called, request_context)
        names = ((ctx.agent and ctx.agent.name) or "", request.model.model_name)
        call = await self.begin_model(names, lambda: dump_request(request.messages))
        with call or nullcontext():
            if call is not None and not call.is_live:
                self._is_repeated, response = True, load_reply(call.result)
                text, thoughts = joined(response.parts, sdk.TextPart), joined(response.parts, sdk.ThinkingPart)
                await self.show_again(call, text, thoughts)
                return response
            response = await handler(request)
            await self.finish_model(call, lambda: dump_reply(response), _usage(response))
        return response

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: sdk.ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        ours = our_tool(tool_def)
        if ours is not None and not ctx.tool_call_approved and ours.requires_approval(args):
            # Before the call begins in the journal: it has not run when a person decides about it.
            raise ApprovalRequired(metadata={_EDITABLE: ours.editable})
        await self.queue.flush()
        self._began[call.tool_call_id] = time.perf_counter()
        with running_call(call.tool_call_id):
            ended = await self.run_tool(
                PydanticStep(call, ours, self.queue.changes_of(ctx.deps), partial(handler, args))
            )
        if ended.error is not None:
            raise ended.error
        return ended.result

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait for the decisions about all deferred calls of a step.

        Raises AgentError for external tools, which run outside the agent.
        """
        if self.queue.journal is None:
            return None
        if requests.calls:
            tools = ", ".join(sorted({call.tool_name for call in requests.calls}))
            raise AgentError(
                f"the agent deferred external tools ({tools}), which Turnwire cannot run; "
                "use tools with approval instead"
            )
        await self.queue.flush()
        results = await asyncio.gather(
            *(self._approve(call, requests.metadata.get(call.tool_call_id, {})) for call in requests.approvals)
        )
        return DeferredToolResults(
            approvals={call.tool_call_id: result for call, result in zip(requests.approvals, results, strict=True)}
        )

    async def _approve(self, call: sdk.ToolCallPart, metadata: dict[str, Any]) -> ToolApproved | ToolDenied:
        reason: object = metadata.get("reason")
        decision = await self.decide(
            call.tool_call_id,
            call.tool_name,
            plain(call.args_as_dict()),
            editable=metadata.get(_EDITABLE) is True,
            reason=reason if isinstance(reason, str) else None,
        )
        if not decision.approved:
            return ToolDenied(decision.denial)
        return ToolApproved(override_args=None if decision.requested_args is None else decision.args)

    async def on_tool_execute_error(
        self, ctx: RunContext[Any], *, call: sdk.ToolCallPart, tool_def: ToolDefinition, args: Any, error: Exception
    ) -> Any:
        if isinstance(error, _CONTROL_FLOW):
            raise error
        failure = tool_error_text(call.tool_name, error)
        if isinstance(error, ToolError):
            raise ToolFailed(failure) from error
        self.end_call(call.tool_call_id, call.tool_name, False, failure)
        raise ToolError(f"the tool {call.tool_name!r} failed ({type(error).__name__})") from error


def _is_complete(response: sdk.ModelResponse) -> bool:
    """Return True if the model reported that it finished."""
    if response.finish_reason in ("length", "content_filter"):
        return False
    # Local models report no finish reason. A server's own reason is in the details only: the SDK invents a missing one.
    return response.provider_url is None or "finish_reason" in (response.provider_details or {})


def _usage(response: sdk.ModelResponse) -> UsageEvent | None:
    usage = response.usage
    if not usage.has_values():
        return None
    return UsageEvent(
        model=response.model_name,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cache_read_tokens or None,
        reasoning_tokens=usage.details.get("reasoning_tokens") or None,
    )
