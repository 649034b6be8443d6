"""Events of SDK runs: from the calls of models and tools to the turn's log.

A turn is one run, and one more for every agent that a tool runs; those have an agent path.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.tools.function import Function, FunctionCall, FunctionExecutionResult

from turnwire.agents.agent_paths import Path
from turnwire.agents.agno.continuation import (
    Ended,
    begin_reply,
    ended,
    record_reply,
    record_result,
    restore_reply,
    restore_result,
    session_state,
)
from turnwire.agents.agno.errors import ReplyFailure
from turnwire.agents.agno.tools import changed, guarded, tool_of
from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.event_queue import EventQueue
from turnwire.core.errors import step_limit_reached
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError
from turnwire.core.log.events import ReasoningEvent, TokenEvent, ToolCallEvent, ToolResultEvent, Usage, UsageEvent
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.model_options import ModelOptions
from turnwire.core.run.inputs import current_inputs
from turnwire.models.errors import unfinished
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import elapsed_ms, loggable, plain, running_call


class AgnoRun:
    """Recorder of one run.

    `has_answered` is True if the model wrote text after the last tool, `has_text` if it wrote any. `written` has two
    texts that are in the log, joined as the SDK joins them: that from before the run's suspension, and that since.
    `decided` are the ids of the calls that a person has decided about, `editable` those of the calls whose arguments a
    person may change. `options` are the client's model options, and `has_called` is True if a tool was called.
    """

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "", agent: str = "") -> None:
        self.queue = queue
        self.path = path
        self.place = place
        self.agent = agent
        self.client_functions: Sequence[Function] = ()
        self.options = ModelOptions()
        self.has_called = False
        self.max_calls: int | None = None
        self.model_calls = 0
        self.failure: ReplyFailure | None = None
        self.decided: set[str] = set()
        self.editable: set[str] = set()
        self.has_text = False
        self.has_answered = False
        self.written = ["", ""]
        self._begins_reply = False
        self._finish_reason: str | None = None
        self._reads_finish = False
        self._changes: ContextChanges | None = None

    # Text

    def write_answer(self, text: str) -> None:
        self._begins_reply = True
        self._write(text)

    def _write(self, text: str) -> None:
        if self._begins_reply and self.has_text:
            self._put_text(PARAGRAPH)
        self._begins_reply = False
        self.has_text = self.has_answered = True
        self._put_text(text)

    def _put_text(self, text: str) -> None:
        self.queue.put(TokenEvent(text, agent_path=self.path) if self.path else text)

    # Models

    async def begin_reply(self, model: Model, messages: list[Message]) -> JournaledCall | None:
        """Begin a model call: take the messages that have come, and find the reply in the journal."""
        self._begins_reply, self._finish_reason, self._reads_finish = True, None, False
        if self.failure is not None and not self.failure.by_tool:
            self.failure = None  # The SDK goes on with a fallback model.
        self.model_calls += 1
        if self.max_calls is not None and self.model_calls > self.max_calls:
            self.failure = ReplyFailure(step_limit_reached(), model.id)
            raise self.failure.error
        await self.queue.flush()
        inputs = current_inputs()
        if inputs is not None and not self.path:  # Messages are for the turn's own agent.
            for text in await inputs.take(self.place or None):
                messages.append(Message(role="user", content=text))
        if self.queue.journal is None:
            return None
        return await begin_reply(self.queue.journal, self.place, self.path, self.agent, model, messages)

    async def repeat_reply(self, call: JournaledCall, message: Message) -> ModelResponse:
        """Return a recorded reply for the SDK, and write its text again if that was taken back."""
        restore_reply(call, message)
        content, reasoning = message.content, message.reasoning_content
        text = content if isinstance(content, str) else ""
        if call.is_shown:
            self.written[1] += text
            self._begins_reply = self._begins_reply and not text
            self.has_text = self.has_text or bool(text)
            self.has_answered = self.has_answered or bool(text)
        else:
            self.read(ModelResponse(content=text or None, reasoning_content=reasoning))
            await self.queue.flush()
            call.show()
        return ModelResponse(content=text or None, reasoning_content=reasoning)

    def read(self, delta: ModelResponse) -> None:
        """Record one piece of a model's reply."""
        if delta.reasoning_content:
            self.queue.put(ReasoningEvent(content=delta.reasoning_content, agent_path=self.path))
        if isinstance(delta.content, str) and delta.content:
            self.written[1] += delta.content
            self._write(delta.content)

    def note_finish(self, reason: str | None) -> None:
        """Note the finish reason of a chunk, from a provider that reports one."""
        self._reads_finish = True
        self._finish_reason = reason or self._finish_reason

    async def end_reply(self, call: JournaledCall | None, model: Model, message: Message) -> None:
        """Record the usage and the reply. Raises ModelError for a reply that is not whole: its tools must not run."""
        usage = _usage(message)
        if usage is not None:
            self.queue.put(_usage_event(message, model.id, self.path))
        if self._reads_finish and self._finish_reason in (None, "length", "content_filter"):
            raise unfinished(self._finish_reason)
        if call is not None:
            await self.queue.flush()
            record_reply(call, message, usage)

    def note_failure(self, error: Exception, model: Model, *, by_tool: bool = False) -> None:
        self.failure = self.failure or ReplyFailure(error, model.id, by_tool)

    # Tools

    def check_calls(self, message: Message, messages: list[Message], calls: list[FunctionCall]) -> None:
        """Mark the calls of our tools that need approval, and record those that the SDK has refused."""
        runnable = {call.call_id for call in calls}
        for request in message.tool_calls or ():
            if request.get("id") not in runnable:
                function: dict[str, Any] = request.get("function") or {}
                name = str(function.get("name") or "")
                refusal = next((each for each in messages if each.tool_call_id == request.get("id")), None)
                self._begin_call(request["id"], name, read_arguments(function.get("arguments") or "") or {})
                self.end_call(request["id"], name, False, refusal and refusal.content, None)
        for call in calls:
            if (tool := tool_of(call.function)) is not None:
                needs = bool(tool.requires_approval(call.arguments or {}))
                call.function = changed(call.function, requires_confirmation=needs)
                if needs and tool.editable and call.call_id:
                    self.editable.add(call.call_id)

    def _begin_call(self, call_id: str, tool: str, args: dict[str, Any]) -> None:
        self.has_answered, self.has_called = False, True
        if call_id not in self.decided:
            self.queue.put(ToolCallEvent(call_id, tool, args, agent_path=self.path))

    def end_call(self, call_id: str, tool: str, success: bool, result: Any, began: float | None) -> None:
        ms = None if began is None else elapsed_ms(began)
        self.queue.put(ToolResultEvent(call_id, tool, success, loggable(result), ms, agent_path=self.path))

    async def run_call(self, function_call: FunctionCall, execute: Callable[[FunctionCall], Awaitable[Ended]]) -> Ended:
        """Run a tool, or return its recorded result."""
        call_id, name = function_call.call_id or "", function_call.function.name
        args, tool = plain(function_call.arguments or {}), tool_of(function_call.function)
        self._begin_call(call_id, name, args)
        await self.queue.flush()
        began = time.perf_counter()
        function_call.function = guarded(function_call.function)
        with running_call(call_id):
            if self.queue.journal is None:
                outcome = await execute(function_call)
            else:
                repeatable = tool is not None and tool.idempotent
                outcome = await self._run_recorded(function_call, execute, args, repeatable)
        success, _, _, result = outcome
        value = result.result if result.status == "success" else result.error
        self.end_call(call_id, name, success is True, value if success in (True, False) else str(success), began)
        return outcome

    async def _run_recorded(
        self,
        function_call: FunctionCall,
        execute: Callable[[FunctionCall], Awaitable[Ended]],
        args: dict[str, Any],
        repeatable: bool,
    ) -> Ended:
        journal, call_id = self.queue.journal, function_call.call_id or ""
        assert journal is not None
        try:
            call = await journal.begin_tool(
                self.place, call_id, function_call.function.name, args, agent_path=self.path, repeatable=repeatable
            )
        except ToolDeniedError as denied:
            return ended(function_call, FunctionExecutionResult(status="failure", error=str(denied)))
        changes = self._state_changes(function_call)
        with call:
            if not call.is_live:
                return restore_result(call, function_call, changes)
            outcome = await execute(function_call)
            # Let parallel runs record their logged replies first, so that a crash makes as little void as possible.
            await asyncio.sleep(0)
            record_result(call, outcome[3], changes and changes.take())
        return outcome

    def _state_changes(self, function_call: FunctionCall) -> ContextChanges | None:
        """Return the recorder of the session's state, which begins with the run's first tool."""
        state = session_state(function_call)
        if state is None:
            return None
        if self._changes is None or self._changes.value is not state:
            self._changes = ContextChanges(state)
        return self._changes


_running: ContextVar[AgnoRun | None] = ContextVar("turnwire_agno_run", default=None)


@contextmanager
def entered_run(run: AgnoRun) -> Generator[None]:
    """Make a run the current one for everything that is started in this context."""
    token = _running.set(run)
    try:
        yield
    finally:
        _running.reset(token)


def running_run() -> AgnoRun | None:
    """Return the run of the current context, if its event loop is the running one.

    A tool's thread may have no event loop or one of its own; the turn's queue must not be touched there.
    """
    run = _running.get()
    try:
        return run if run is not None and run.queue.loop is asyncio.get_running_loop() else None
    except RuntimeError:
        return None


def _usage(message: Message) -> Usage | None:
    metrics = message.metrics
    if not (metrics and (metrics.input_tokens or metrics.output_tokens)):
        return None
    return Usage(metrics.input_tokens, metrics.output_tokens)


def _usage_event(message: Message, model: str, path: Path) -> UsageEvent:
    metrics = message.metrics
    return UsageEvent(
        model=model,
        input_tokens=metrics.input_tokens,
        output_tokens=metrics.output_tokens,
        cached_input_tokens=metrics.cache_read_tokens or None,
        reasoning_tokens=metrics.reasoning_tokens or None,
        agent_path=path,
    )
