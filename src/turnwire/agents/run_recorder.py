"""The recorder of one run of an SDK: its text, its model calls and its tool calls.

An adapter subclasses it and calls it where the SDK calls models and tools. The SDK's own form of messages, replies and
results is left to the adapter.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic_core import to_json

from turnwire.agents.agent_paths import Path, leave_agent
from turnwire.agents.event_queue import EventQueue, enter_run
from turnwire.core.errors import step_limit_reached
from turnwire.core.journal.turn_journal import JournaledCall, ToolDeniedError, fingerprint
from turnwire.core.journal.waits import ClientTool, approval
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    Event,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.log.model_options import ModelOptions
from turnwire.core.run.inputs import current_inputs
from turnwire.tools.declaration import Tool
from turnwire.tools.invocation import elapsed_ms, loggable

T = TypeVar("T")


class ToolStep(ABC, Generic[T]):
    """One tool call of an SDK, whose outcome is a `T`.

    `needs_approval` is True if a person must decide about the call first, and `editable` if the person may change its
    arguments. `repeatable` is True if the tool may run again if it breaks off. `ours` is the tool if it is one of ours.
    """

    needs_approval = False
    editable = False
    repeatable = False

    def __init__(self, call_id: str, tool: str, args: dict[str, Any], ours: Tool | None = None) -> None:
        self.call_id = call_id
        self.tool = tool
        self.args = args
        if ours is not None:
            self.editable, self.repeatable = ours.editable, ours.idempotent

    @abstractmethod
    async def run(self, args: dict[str, Any]) -> T:
        """Run the tool. The arguments are `self.args`, unless a person has changed them."""

    @abstractmethod
    def fail(self, text: str) -> T:
        """Return the outcome of a call that is not made; the model gets the text."""

    @abstractmethod
    def dump(self, outcome: T) -> Any:
        """Return an outcome as JSON, for the journal."""

    @abstractmethod
    async def load(self, recorded: Any) -> T:
        """Return a recorded outcome, and repeat the tool's effects on the run."""


class CallFailure(Struct, frozen=True):
    """An exception of a model, or of a tool (`is_tool`), and its name: to tell it apart from the SDK's exceptions."""

    error: Exception
    name: str
    is_tool: bool = False


class RunRecorder:
    """Recorder of one run of an agent.

    `path` is the agent path of a run that a tool has started, and `place` the run's place in the turn's journal.
    `has_text` is True if the run has written text, `has_answered` if it has since its last tool, and `has_called` if it
    has called a tool. `options` and `client_tools` are what the client has sent for the turn's own run. `max_calls`
    limits the model calls. `editable` names the tools whose arguments a person may change when approving a call.
    `hides_text` is True while the model writes something that is not for people. `failure` is what an adapter has noted
    about the call that failed last.
    """

    _running: "ContextVar[RunRecorder | None]" = ContextVar("turnwire_run", default=None)

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        self.queue = queue
        self.path = path
        self.place = place or (queue.journal.place("run") if queue.journal and not path else "")
        self.options = ModelOptions()
        self.client_tools: Sequence[ClientTool] = ()
        self.editable: Collection[str] = ()
        self.max_calls: int | None = None
        self.model_calls = 0
        self.has_text = self.has_answered = self.has_called = False
        self.begins_reply = self.hides_text = False
        self.failure: CallFailure | None = None
        self._began: dict[str, float] = {}

    # The current run

    @contextmanager
    def entered(self) -> Generator[None]:
        """Make this run the current one for everything that is started in this context."""
        token = RunRecorder._running.set(self)
        try:
            yield
        finally:
            with suppress(ValueError):  # An application may close a run in another task than it has opened it in.
                RunRecorder._running.reset(token)

    def enter(self) -> None:
        """Make this run the current one for the rest of the current task."""
        RunRecorder._running.set(self)

    @classmethod
    def around(cls) -> Self | None:
        """Return the run of the current context, also in a thread with an event loop of its own."""
        run = RunRecorder._running.get()
        return run if isinstance(run, cls) else None

    @classmethod
    def current(cls) -> Self | None:
        """Return the run of the current context, if its event loop is the running one.

        A tool's thread may have no event loop or one of its own; the turn's queue must not be touched there.
        """
        run = cls.around()
        try:
            return run if run is not None and run.queue.loop is asyncio.get_running_loop() else None
        except RuntimeError:
            return None

    @classmethod
    def nested(cls, agent: str) -> Self:
        """Return the recorder of a run that a tool of the current run starts; `leave` it when that run has ended."""
        outer = cls.around()
        run = cls(*enter_run(outer, agent))
        run.editable = outer.editable if outer is not None else ()
        return run

    def leave(self) -> None:
        leave_agent(self.path)

    # Events

    async def flush(self) -> None:
        """Wait until everything that the run has written is in the log."""
        await self.queue.flush()

    def put(self, event: Event) -> None:
        """Write an event of this run."""
        self.queue.put(replace(event, agent_path=self.path) if self.path else event)

    def write(self, text: str) -> None:
        """Write text of the answer. The first text of a reply is a paragraph of its own."""
        if not text or self.hides_text:
            return
        if self.begins_reply and self.has_text:
            self._put_text(PARAGRAPH)
        self.note_text(text)
        self._put_text(text)

    def write_reply(self, answer: Any) -> None:
        """Write an answer that no model has streamed: text, or a value as JSON."""
        self.begins_reply = True
        self.write(answer_text(answer))

    def note_text(self, text: str) -> None:
        """Note text that is in the log already."""
        if text and not self.hides_text:
            self.begins_reply = False
            self.has_text = self.has_answered = True

    def think(self, text: str | None) -> None:
        if text:
            self.put(ReasoningEvent(content=text))

    def _put_text(self, text: str) -> None:
        self.queue.put(TokenEvent(text, agent_path=self.path) if self.path else text)

    # Models

    async def take_inputs(self) -> Sequence[str]:
        """Return the messages that have come for the turn's own agent. Sub-agents get none."""
        inputs = current_inputs()
        if inputs is None or self.path:
            return ()
        await self.flush()
        return await inputs.take(self.place or None)

    def count_call(self) -> None:
        """Count a model call. Raises AgentError at the limit."""
        self.model_calls += 1
        if self.max_calls is not None and self.model_calls > self.max_calls:
            raise step_limit_reached()

    async def begin_model(self, names: tuple[str, str], request: Callable[[], Any]) -> JournaledCall | None:
        """Begin a model call, when everything before it is in the log; None if the run is not recorded.

        `names` are those of the agent and the model. `request` returns what the model gets, as JSON.
        """
        self.begins_reply = True
        await self.flush()
        if (journal := self.queue.journal) is None:
            return None
        return await journal.begin_model(
            self.place, names=names, fingerprint=fingerprint(request()), agent_path=self.path
        )

    async def show_again(self, call: JournaledCall, text: str, thought: str | None = None) -> None:
        """Write the text of a recorded reply again, unless it is in the log."""
        if call.is_shown:
            self.note_text(text)
            return
        self.think(thought)
        self.write(text)
        await self.flush()
        call.show()

    async def finish_model(
        self, call: JournaledCall | None, reply: Callable[[], Any], usage: Usage | UsageEvent | None = None
    ) -> None:
        """Record a reply, when its text is in the log."""
        if call is not None:
            await self.flush()
            call.finish(reply(), usage=usage and Usage(usage.input_tokens, usage.output_tokens))

    # Tools

    def begin_call(self, call_id: str, tool: str, args: dict[str, Any]) -> None:
        self.has_answered, self.has_called = False, True
        self._began[call_id] = time.perf_counter()
        self.put(ToolCallEvent(call_id, tool, args))

    def end_call(self, call_id: str, tool: str, success: bool, result: Any) -> None:
        began = self._began.pop(call_id, None)
        ms = None if began is None else elapsed_ms(began)
        self.put(ToolResultEvent(call_id, tool, success, loggable(result), ms))

    def refuse_call(self, call_id: str, tool: str, args: dict[str, Any], result: Any) -> None:
        """Write a call that the SDK has answered with an error, without a tool."""
        self.begin_call(call_id, tool, args)
        self._began.pop(call_id)
        self.end_call(call_id, tool, False, result)

    async def run_tool(self, step: ToolStep[T]) -> T:
        """Run a tool whose `tool_call` event is in the log, after the decision of a person if it needs one."""
        args = step.args
        if step.needs_approval:
            decision = await self.decide(step.call_id, step.tool, args, editable=step.editable)
            if not decision.approved:
                return step.fail(decision.denial)
            args = args if decision.requested_args is None else decision.args
        try:
            call = await self.begin_tool(step.call_id, step.tool, args, repeatable=step.repeatable)
        except ToolDeniedError as denied:
            return step.fail(str(denied))
        if call is None:
            return await step.run(args)
        with call:
            if not call.is_live:
                return await step.load(call.result)
            outcome = await step.run(args)
            # Let parallel runs record their logged replies first, so that a crash makes as little void as possible.
            await asyncio.sleep(0)
            call.finish(step.dump(outcome))
        return outcome

    async def decide(
        self, call_id: str, tool: str, args: dict[str, Any], *, editable: bool = False, reason: str | None = None
    ) -> Decision:
        """Wait for a person's decision about a call whose `tool_call` event is in the log."""
        editable = editable or tool in self.editable
        return await approval(
            ApprovalRequestEvent(call_id, tool, args, reason, editable=editable, agent_path=self.path)
        )

    async def begin_tool(
        self, call_id: str, tool: str, args: dict[str, Any], *, repeatable: bool = False
    ) -> JournaledCall | None:
        """Begin a tool call in the journal; None if the run is not recorded.

        Raises ToolDeniedError if the call broke off, and a person has not allowed it to run again.
        """
        if (journal := self.queue.journal) is None:
            return None
        return await journal.begin_tool(self.place, call_id, tool, args, agent_path=self.path, repeatable=repeatable)


def answer_text(answer: Any) -> str:
    """Return an answer that may be a value as text: a value as JSON."""
    return answer if isinstance(answer, str) else to_json(answer, serialize_unknown=True).decode()
