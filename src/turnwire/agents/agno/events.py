"""Events of SDK runs: from the calls of models and tools to the turn's log.

A turn is one run, and one more for every agent that a tool runs; those have an agent path.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.tools.function import Function, FunctionCall

from turnwire.agents.agent_paths import Path
from turnwire.agents.agno.continuation import (
    AgnoStep,
    Ended,
    dump_reply,
    dump_request,
    load_reply,
    session_state,
    show_outcome,
)
from turnwire.agents.agno.tools import changed, tool_of
from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.run_recorder import CallFailure, RunRecorder
from turnwire.core.journal.turn_journal import JournaledCall
from turnwire.core.log.events import UsageEvent
from turnwire.models.errors import unfinished
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import running_call


class AgnoRun(RunRecorder):
    """Recorder of one run. `written` is the text of all replies, joined as the SDK joins them."""

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        super().__init__(queue, path, place)
        self.agent = ""
        self.client_functions: Sequence[Function] = ()
        self.written = ""
        self._asks: set[str | None] = set()
        self._finish_reason: str | None = None
        self._reads_finish = False
        self._changes: ContextChanges | None = None

    # Models

    @asynccontextmanager
    async def replying(self, model: Model, messages: list[Message]) -> AsyncGenerator[JournaledCall | None]:
        """Make a model call in the block: take the messages that have come, and find the reply in the journal."""
        self._finish_reason, self._reads_finish = None, False
        if self.failure is not None and not self.failure.is_tool:
            self.failure = None  # The SDK goes on with a fallback model.
        try:
            self.count_call()
            messages += [Message(role="user", content=text) for text in await self.take_inputs()]
            call = await self.begin_model((self.agent, model.id), lambda: dump_request(messages))
            with call or nullcontext():
                yield call
        except Exception as error:
            self.note_failure(error, model)
            raise

    async def repeat_reply(self, call: JournaledCall, message: Message) -> ModelResponse:
        """Return a recorded reply for the SDK, and write its text again if that was taken back."""
        load_reply(call.result, message)
        text = message.content if isinstance(message.content, str) else ""
        self.written += text
        await self.show_again(call, text, message.reasoning_content)
        return ModelResponse(content=text or None, reasoning_content=message.reasoning_content)

    def read(self, delta: ModelResponse) -> None:
        """Record one piece of a model's reply."""
        self.think(delta.reasoning_content)
        if isinstance(delta.content, str):
            self.written += delta.content
            self.write(delta.content)

    def note_finish(self, reason: str | None) -> None:
        """Note the finish reason of a chunk, from a provider that reports one."""
        self._reads_finish = True
        self._finish_reason = reason or self._finish_reason

    async def end_reply(self, call: JournaledCall | None, model: Model, message: Message) -> None:
        """Record the usage and the reply. Raises ModelError for a reply that is not whole: its tools must not run."""
        usage = _usage(message, model.id)
        if usage is not None:
            self.put(usage)
        if self._reads_finish and self._finish_reason in (None, "length", "content_filter"):
            raise unfinished(self._finish_reason)
        await self.finish_model(call, lambda: dump_reply(message), usage)

    def note_failure(self, error: Exception, model: Model, *, is_tool: bool = False) -> None:
        self.failure = self.failure or CallFailure(error, model.id, is_tool)

    # Tools

    def check_calls(self, message: Message, messages: list[Message], calls: list[FunctionCall]) -> None:
        """Record the calls that the SDK has refused, and note those that need approval.

        The SDK would end the run at a call that needs one. It does not see that the call does: `run_call` waits.
        """
        runnable = {call.call_id for call in calls}
        for request in message.tool_calls or ():
            if request.get("id") not in runnable:
                function: dict[str, Any] = request.get("function") or {}
                refusal = next((each for each in messages if each.tool_call_id == request.get("id")), None)
                args = read_arguments(function.get("arguments") or "") or {}
                self.refuse_call(request["id"], str(function.get("name") or ""), args, refusal and refusal.content)
        self._asks = {call.call_id for call in calls if _needs_approval(call)}
        for call in calls:
            if call.function.requires_confirmation:
                call.function = changed(call.function, requires_confirmation=False)

    async def run_call(self, function_call: FunctionCall, execute: Callable[[FunctionCall], Awaitable[Ended]]) -> Ended:
        """Run a tool, or return its recorded result."""
        step = AgnoStep(function_call, execute, self._state_changes(function_call))
        step.needs_approval = function_call.call_id in self._asks
        self.begin_call(step.call_id, step.tool, step.args)
        await self.queue.flush()
        with running_call(step.call_id):
            outcome = await self.run_tool(step)
        self.end_call(step.call_id, step.tool, *show_outcome(outcome))
        return outcome

    def _state_changes(self, function_call: FunctionCall) -> ContextChanges | None:
        """Return the recorder of the session's state, which begins with the run's first tool."""
        state = session_state(function_call)
        if state is None:
            return None
        if self._changes is None or self._changes.value is not state:
            self._changes = ContextChanges(state)
        return self._changes


def _needs_approval(call: FunctionCall) -> bool:
    tool = tool_of(call.function)
    return bool(call.function.requires_confirmation if tool is None else tool.requires_approval(call.arguments or {}))


def _usage(message: Message, model: str) -> UsageEvent | None:
    metrics = message.metrics
    if not (metrics and (metrics.input_tokens or metrics.output_tokens)):
        return None
    return UsageEvent(
        model=model,
        input_tokens=metrics.input_tokens,
        output_tokens=metrics.output_tokens,
        cached_input_tokens=metrics.cache_read_tokens or None,
        reasoning_tokens=metrics.reasoning_tokens or None,
    )
