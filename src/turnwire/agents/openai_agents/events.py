"""Events of SDK runs: from the SDK's hooks and model streams to the turn's log.

A turn has one run, and one more for every agent that is used as a tool; the further runs have an agent path.
"""

import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, cast

from agents import (
    Agent,
    ModelBehaviorError,
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

from turnwire.agents.agent_paths import Path
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.run_recorder import RunRecorder
from turnwire.core.errors import AgentError
from turnwire.core.log.events import HandoffEvent, ReasoningEvent, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.models.contract import Piece, ToolCallRequest
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import ToolOutcome, set_running_call, tool_error_text


def failure_text(tool: str, error: Exception) -> str:
    """Return the result text of a tool that failed with this error."""
    return f"Error: {error}" if isinstance(error, AgentError) else tool_error_text(tool, error)


class _RunCall(Struct):
    """A running tool call, with its failure or outcome if that is known before the SDK reports its end."""

    tool: str
    has_failed: bool = False
    failure: str | None = None
    outcome: ToolOutcome | None = None


class _TurnCalls:
    """Calls of all runs of a turn: the agent path of each call's run, and the calls that were written to ask a person.

    The SDK ends all runs that such a call is in, and makes new ones when it is decided.
    """

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        self._written: set[tuple[Path, str]] = set()

    def note_written(self, path: Path, call_id: str) -> None:
        self._written.add((path, call_id))

    def pop_written(self, path: Path, call_id: str) -> bool:
        """Return True, once, if the `tool_call` event of a call is written already."""
        if (path, call_id) not in self._written:
            # Parallel sub-agents of one name may begin in another order than before.
            path = next((other for other, id_ in self._written if id_ == call_id and len(other) == len(path)), path)
        is_written = (path, call_id) in self._written
        self._written.discard((path, call_id))
        return is_written


class Run(RunRecorder):
    """Recorder of one run.

    `inputs` are the messages that have entered the run, each with the number of the SDK's items before it.
    """

    def __init__(self, queue: EventQueue, path: Path = (), place: str = "") -> None:
        super().__init__(queue, path, place)
        self.calls = _TurnCalls()
        self.inputs: list[tuple[int, str]] = []
        self.session: Session | None = None
        self._open: dict[str, _RunCall] = {}
        self._reported: set[str] = set()
        self._requests: dict[str, tuple[str, str]] = {}

    @classmethod
    def nested(cls, agent: str) -> Self:
        outer, run = cls.around(), super().nested(agent)
        if outer is not None and outer.queue is run.queue:
            run.calls = outer.calls
        return run

    def read(self, piece: Piece) -> None:
        """Record one piece of the model's stream."""
        match piece:
            case str():
                self.write(piece)
            case ReasoningEvent() | UsageEvent():
                self.put(piece)
            case ToolCallRequest():
                pass  # Recorded when the tool runs.

    # Tools

    def open_call(self, call_id: str, tool: str, arguments: str) -> None:
        self._reported.add(call_id)
        is_new = call_id not in self._open and not self.calls.pop_written(self.path, call_id)
        self._open[call_id] = _RunCall(tool)
        if is_new:
            self.begin_call(call_id, tool, read_arguments(arguments) or {})
        self._began[call_id] = time.perf_counter()

    def fail_call(self, call_id: str, failure: str | None = None) -> None:
        """Mark a call as failed. Its result is `failure`, or what the SDK reports at its end."""
        if call := self._open.get(call_id):
            call.has_failed, call.failure = True, failure

    def note_outcome(self, call_id: str, outcome: ToolOutcome) -> None:
        """Keep the outcome of one of our own tools until the SDK reports the end of its call."""
        if call := self._open.get(call_id):
            call.has_failed, call.outcome = not outcome.success, outcome

    def call_state(self, call_id: str) -> _RunCall | None:
        """Return a running call, with what is known about its end."""
        return self._open.get(call_id)

    def close_call(self, call_id: str, result: Any, *, failed: bool = False) -> None:
        call = self._open.pop(call_id, None)
        if call is None:
            return
        value = call.outcome.result if call.outcome else result if call.failure is None else call.failure
        self.end_call(call_id, call.tool, not (failed or call.has_failed), value)

    def close_calls(self, error: Exception) -> None:
        """End the running calls of a run that failed."""
        for call_id, call in list(self._open.items()):
            self.close_call(call_id, failure_text(call.tool, error), failed=True)

    # Calls that wait for a person

    def write_pending(self, path: Path, call_id: str, tool: str, args: dict[str, Any]) -> None:
        """Write the call of a run that the SDK has interrupted, before a person is asked about it."""
        self.calls.note_written(path, call_id)
        self.queue.put(ToolCallEvent(call_id, tool, args, agent_path=path))

    def write_denial(self, path: Path, call_id: str, tool: str, denial: str) -> None:
        self._reported.add(call_id)
        self.queue.put(ToolResultEvent(call_id, tool, False, denial, agent_path=path))

    # Items that the SDK reports late

    def note_request(self, call_id: str, tool: str, arguments: str) -> None:
        self._requests[call_id] = (tool, arguments)
        self.calls.paths[call_id] = self.path

    def note_output(self, call_id: str, output: Any) -> None:
        """Record the output of a call that never began: the tool is unknown, or a guardrail rejected the call."""
        request = self._requests.get(call_id)
        if request is not None and call_id not in self._reported:
            self.open_call(call_id, *request)
            self.close_call(call_id, output, failed=True)


class Hooks(RunHooks[Any]):
    """Hooks that record a run, and then call the application's own hooks."""

    def __init__(self, run: Run, inner: RunHooks[Any] | None, prepare_tool: Callable[[Tool], None]) -> None:
        self.agent: Agent[Any] | None = None
        """The agent that calls a model now, or called one last."""
        self._run = run
        self._inner = inner = inner or RunHooks[Any]()
        self._prepare_tool = prepare_tool
        self.on_llm_end, self.on_agent_start = inner.on_llm_end, inner.on_agent_start
        self.on_agent_end = inner.on_agent_end

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        self.agent = agent
        await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        self._run.put(HandoffEvent(to_agent.name))
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
        self._run.open_call(_call_id(context, tool), tool.name, arguments)
        await self._run.queue.flush()
        await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        self._run.has_answered = False
        self._run.close_call(_call_id(context, tool), result)
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
