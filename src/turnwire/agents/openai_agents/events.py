"""Events of SDK runs: from the SDK's hooks and model streams to the turn's log.

A turn has one run, and one more for every agent that is used as a tool; the further runs have an agent path.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from agents import (
    Agent,
    AgentHookContext,
    ModelBehaviorError,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    RunItemStreamEvent,
    Session,
    Tool,
    ToolCallItem,
    ToolCallOutputItem,
    TResponseInputItem,
)
from agents.run_config import ToolErrorFormatter, ToolErrorFormatterArgs
from agents.tool_context import ToolContext
from msgspec import Struct
from msgspec.structs import replace

from turnwire.agents.agent_paths import Path, enter_agent, leave_agent
from turnwire.agents.event_queue import EmittedEvents, EventQueue
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import ClientTool
from turnwire.core.log.events import (
    Event,
    HandoffEvent,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.model_options import ModelOptions
from turnwire.models.contract import Piece, ToolCallRequest
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import ToolOutcome, elapsed_ms, loggable, set_running_call, tool_error_text


class RunQueue(EventQueue):
    """The queue of a turn, with its runs and the calls that are unfinished while the turn is suspended."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self._unfinished: dict[tuple[Path, str], str] = {}

    def unfinished_calls(self) -> list[tuple[Path, str, str]]:
        """Return path, id and tool of the calls that are in the log without a result."""
        running = [(run.path, call_id, tool) for run in self.runs for call_id, tool in run.open_tools()]
        return [*((path, call_id, tool) for (path, call_id), tool in self._unfinished.items()), *running]

    def restore(self, calls: list[tuple[Path, str, str]]) -> None:
        """Restore the calls that began before the suspension."""
        self._unfinished = {(path, call_id): tool for path, call_id, tool in calls}

    def pop_restored(self, path: Path, call_id: str) -> str | None:
        """Return the tool of a call that began before the suspension, once."""
        if (path, call_id) not in self._unfinished:
            # Parallel sub-agents of one name may begin in another order than before the suspension.
            path = next((other for other, id_ in self._unfinished if id_ == call_id and len(other) == len(path)), path)
        return self._unfinished.pop((path, call_id), None)

    def path_of(self, call_id: str, default: Path) -> Path:
        """Return the agent path of the run whose model requested the call."""
        return next((run.path for run in self.runs if run.has_request(call_id)), default)


class EmittedRuns(EmittedEvents, RunQueue):
    """A `RunQueue` for runs that no adapter reads: its events are emitted at once."""


class ModelFailure(Struct, frozen=True):
    """An exception of a model's client, to tell it apart from the same exception of a tool."""

    error: Exception
    model: str


def failure_text(tool: str, error: Exception) -> str:
    """Return the result text of a tool that failed with this error."""
    return f"Error: {error}" if isinstance(error, AgentError) else tool_error_text(tool, error)


class _RunCall(Struct):
    """A running tool call, with its failure or outcome if that is known before the SDK reports its end.

    `began` is None for a call that was restored after a suspension.
    """

    tool: str
    began: float | None
    has_failed: bool = False
    failure: str | None = None
    outcome: ToolOutcome | None = None


class Run:
    """Recorder of one run.

    `has_answered` is True if the model wrote text after the last tool, `has_text` if it wrote any.
    """

    def __init__(self, queue: RunQueue, path: Path = (), place: str = "") -> None:
        queue.runs.append(self)
        self.queue = queue
        self.path = path
        self.place = place or (queue.journal.place("run") if queue.journal else "")
        """The run's place in the turn's journal."""
        self.has_answered = False
        self.has_text = False
        self._begins_reply = False
        self._writes_value = False
        self.model_failure: ModelFailure | None = None
        self.inputs: list[tuple[int, str]] = []
        """The messages that have entered the run, each with the number of the SDK's items before it."""
        self.session: Session | None = None
        self.client_tools: Sequence[ClientTool] = ()
        """The tools that the client runs, for the agents of the turn's own run."""
        self.model_options = ModelOptions()
        """The client's options, for the same agents."""
        self._open: dict[str, _RunCall] = {}
        self._reported: set[str] = set()
        self._requests: dict[str, tuple[str, str]] = {}

    def inside(self, agent: str) -> "Run":
        """Return the recorder for an agent that a tool of this run calls; `leave` when that run has ended."""
        place = self.queue.journal.place("run") if self.queue.journal else ""
        return Run(self.queue, enter_agent(self.path, agent, place=place), place)

    def leave(self) -> None:
        leave_agent(self.path)

    def add(self, event: Event) -> None:
        self.queue.put(event)

    def read(self, piece: Piece) -> None:
        """Record one piece of the model's stream."""
        match piece:
            case str():
                self.add_text(piece)
            case ReasoningEvent() | UsageEvent():
                self.add(replace(piece, agent_path=self.path))
            case ToolCallRequest():
                pass  # Recorded when the tool runs.

    def begin_reply(self, *, is_value: bool = False) -> None:
        """Note that the model is called: what it writes is a paragraph of its own, or the JSON of a value."""
        self._begins_reply = True
        self._writes_value = is_value

    def note_text(self, text: str) -> None:
        """Note text of a reply that is in the log already."""
        if text and not (self.path and self._writes_value):
            self._begins_reply = False
            self.has_answered = self.has_text = True

    def add_text(self, text: str) -> None:
        if self.path and self._writes_value:
            return  # For the code that runs the sub-agent, such as a guardrail, not for people.
        if self._begins_reply and self.has_text:
            self._put_text(PARAGRAPH)
        self.note_text(text)
        self._put_text(text)

    def _put_text(self, text: str) -> None:
        self.queue.put(TokenEvent(text, agent_path=self.path) if self.path else text)

    def hand_over(self, agent: str) -> None:
        self.add(HandoffEvent(agent, agent_path=self.path))

    # Tools

    def begin_call(self, call_id: str, tool: str, arguments: str) -> None:
        args = read_arguments(arguments) or {}
        self._reported.add(call_id)
        is_new = self._find(call_id) is None
        self._open[call_id] = _RunCall(tool, time.perf_counter())
        if is_new:
            self.add(ToolCallEvent(call_id, tool, args, agent_path=self.path))

    def fail_call(self, call_id: str, failure: str | None = None) -> None:
        """Mark a call as failed. Its result is `failure`, or what the SDK reports at its end."""
        if call := self._find(call_id):
            call.has_failed, call.failure = True, failure

    def note_outcome(self, call_id: str, outcome: ToolOutcome) -> None:
        """Keep the outcome of one of our own tools until the SDK reports the end of its call."""
        if call := self._find(call_id):
            call.has_failed, call.outcome = not outcome.success, outcome

    def end_call(self, call_id: str, result: Any, *, failed: bool = False) -> None:
        call = self._find(call_id)
        if call is None:
            return
        del self._open[call_id]
        ms = None if call.began is None else elapsed_ms(call.began)
        value = call.outcome.result if call.outcome else loggable(result) if call.failure is None else call.failure
        success = not (failed or call.has_failed)
        self.add(ToolResultEvent(call_id, call.tool, success, value, ms, agent_path=self.path))

    def _find(self, call_id: str) -> _RunCall | None:
        """Return a running call, also one that began before a suspension."""
        if call_id not in self._open and (tool := self.queue.pop_restored(self.path, call_id)):
            self._open[call_id] = _RunCall(tool, None)
        return self._open.get(call_id)

    def call_state(self, call_id: str) -> "_RunCall | None":
        """Return a running call, with what is known about its end."""
        return self._open.get(call_id)

    def open_tools(self) -> list[tuple[str, str]]:
        return [(call_id, call.tool) for call_id, call in self._open.items()]

    def end_open_calls(self, error: Exception) -> None:
        """End the running calls of a run that failed."""
        for call_id, call in list(self._open.items()):
            self.end_call(call_id, failure_text(call.tool, error), failed=True)

    # Items that the SDK reports late

    def has_request(self, call_id: str) -> bool:
        return call_id in self._requests

    def note_request(self, call_id: str, tool: str, arguments: str) -> None:
        self._requests[call_id] = (tool, arguments)

    def note_output(self, call_id: str, output: Any) -> None:
        """Record the output of a call that never began: the tool is unknown, or a guardrail rejected the call."""
        request = self._requests.get(call_id)
        if request is not None and call_id not in self._reported:
            self.begin_call(call_id, *request)
            self.end_call(call_id, output, failed=True)


_running: ContextVar[Run | None] = ContextVar("turnwire_openai_agents_run", default=None)


@contextmanager
def entered_run(run: Run) -> Generator[None]:
    """Make a run the current one for everything that is started in this context."""
    token = _running.set(run)
    try:
        yield
    finally:
        _running.reset(token)


def context_run() -> Run | None:
    """Return the run of the current context, also in a thread with an event loop of its own."""
    return _running.get()


def running_run() -> Run | None:
    """Return the run of the current context, if its event loop is the running one."""
    run = _running.get()
    # A tool's thread may have its own event loop, from which the turn's queue must not be touched.
    if run is None or run.queue.loop is not asyncio.get_running_loop():
        return None
    return run


class Hooks(RunHooks[Any]):
    """Hooks that record a run, and then call the application's own hooks."""

    def __init__(self, run: Run, inner: RunHooks[Any] | None, prepare_tool: Callable[[Tool], None]) -> None:
        self.agent: Agent[Any] | None = None
        """The agent that calls a model now, or called one last."""
        self._run = run
        self._inner = inner or RunHooks[Any]()
        self._prepare_tool = prepare_tool

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        self.agent = agent
        await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        await self._inner.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        await self._inner.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        await self._inner.on_agent_end(context, agent, output)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        self._run.hand_over(to_agent.name)
        await self._inner.on_handoff(context, from_agent, to_agent)

    def on_tool_start(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> Coroutine[Any, Any, None]:
        # Not `async`: the SDK calls this in the tool's task, but awaits the coroutine in another one.
        set_running_call(_call_id(context, tool))
        self._prepare_tool(tool)
        return self._begin(context, agent, tool)

    async def _begin(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        arguments = context.tool_arguments if isinstance(context, ToolContext) else ""
        self._run.begin_call(_call_id(context, tool), tool.name, arguments)
        await self._run.queue.flush()
        await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        self._run.has_answered = False
        self._run.end_call(_call_id(context, tool), result)
        await self._inner.on_tool_end(context, agent, tool, result)


def _call_id(context: RunContextWrapper[Any], tool: Tool) -> str:
    # Shell, patch and similar tools run one after the other, and their hooks get no call id.
    return context.tool_call_id if isinstance(context, ToolContext) else tool.name


def error_formatter(run: Run, inner: ToolErrorFormatter | None) -> ToolErrorFormatter:
    """Return a formatter that marks failed calls and gives the model the application's text, or the error's class."""

    def format_error(args: ToolErrorFormatterArgs[Any]) -> Any:
        run.fail_call(args.call_id)
        if inner is not None:
            return inner(args)
        # The model may read what is wrong with its arguments, but not what a tool raised by accident.
        if args.error is None or isinstance(args.error, ModelBehaviorError):
            return None
        return tool_error_text(args.tool_name, args.error)

    return format_error


def read_item(run: Run, event: object) -> None:
    """Record calls that no hook reports: those that are answered without running a tool."""
    if not isinstance(event, RunItemStreamEvent):
        return
    raw: Any = event.item.raw_item
    call_id = _field(raw, "call_id")
    if call_id is None:
        return
    if isinstance(event.item, ToolCallItem):
        run.note_request(call_id, _field(raw, "name") or "", _field(raw, "arguments") or "")
    elif isinstance(event.item, ToolCallOutputItem):
        run.note_output(call_id, event.item.output)


def _field(raw: Any, name: str) -> str | None:
    """Return a field of an item, which the SDK passes as a dictionary or as an object."""
    value: object = cast("dict[str, object]", raw).get(name) if isinstance(raw, dict) else getattr(raw, name, None)
    return value if isinstance(value, str) else None
