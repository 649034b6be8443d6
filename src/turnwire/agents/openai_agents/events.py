"""What happens in one run of the SDK, and its way into the turn.

A turn is one run, and one more for every agent that is used as a tool in it: those have a path.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, cast

from agents import (
    Agent,
    AgentHookContext,
    ModelBehaviorError,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    RunItemStreamEvent,
    Tool,
    ToolCallItem,
    ToolCallOutputItem,
    TResponseInputItem,
)
from agents.run_config import ToolErrorFormatter, ToolErrorFormatterArgs
from agents.tool_context import ToolContext
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.emit import emit
from turnwire.core.errors import AgentError, TurnwireError
from turnwire.core.events import (
    Event,
    HandoffEvent,
    ReasoningEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.models.contract import Piece, ToolWish
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import ToolOutcome, loggable, set_running_call, why_it_failed

Path = tuple[str, ...]
_ROOM = 256


class EventQueue:
    """Events between the SDK's tasks and the generator that yields them, in the order they happened."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.runs: list[Run] = []
        self._queue: asyncio.Queue[Event | str | None] = asyncio.Queue()
        self._is_closed = False
        self._left: dict[tuple[Path, str], str] = {}

    def put(self, event: Event | str | None) -> None:
        """None is the end."""
        if not self._is_closed:
            self._queue.put_nowait(event)
        elif isinstance(event, UsageEvent):
            # The run is being stopped and nobody reads here any more; what it has cost is still told.
            with suppress(TurnwireError):
                emit(event)

    async def taken(self) -> None:
        """Waits until everything put here is in the log. What a tool emits itself must not overtake it."""
        if not self._is_closed:
            await self._queue.join()

    async def room(self) -> None:
        """Holds a model back that is faster than the log."""
        if self._queue.qsize() > _ROOM:
            await self.taken()

    async def events(self) -> AsyncIterator[Event | str]:
        while (event := await self._queue.get()) is not None:
            yield event
            # Only now: who asks for the next event has written this one.
            self._queue.task_done()

    def close(self) -> None:
        """Nothing is taken any more."""
        self._is_closed = True

    def release(self) -> None:
        """Lets go of those who wait for what nobody will take."""
        with suppress(ValueError):
            while True:
                self._queue.task_done()

    # Over a wait

    def began(self) -> list[tuple[Path, str, str]]:
        """The calls that were told and have not ended: path, id and tool."""
        running = [(run.path, call_id, tool) for run in self.runs for call_id, tool in run.open_tools()]
        return [*((path, call_id, tool) for (path, call_id), tool in self._left.items()), *running]

    def take_up(self, began: list[tuple[Path, str, str]]) -> None:
        """The turn has waited, and these were told before."""
        self._left = {(path, call_id): tool for path, call_id, tool in began}

    def taken_up(self, path: Path, call_id: str) -> str | None:
        """The tool of a call that began before the wait; once."""
        return self._left.pop((path, call_id), None)

    def path_of(self, call_id: str, otherwise: Path) -> Path:
        """Where a call was wished for."""
        return next((run.path for run in self.runs if run.has_wish(call_id)), otherwise)


class ModelFailure(Struct, frozen=True):
    """What a model's client raised, told apart from the same error raised by a tool."""

    error: Exception
    model: str


def told_of(tool: str, error: Exception) -> str:
    """What the log is told of a tool that failed with this error."""
    return f"Error: {error}" if isinstance(error, AgentError) else why_it_failed(tool, error)


class _RunCall(Struct):
    """A tool that runs; `why` it has failed and what came of it, if somebody knows that before its end.

    When one `began` that a person was asked in is not known any more.
    """

    tool: str
    began: float | None
    has_failed: bool = False
    why: str | None = None
    outcome: ToolOutcome | None = None


class Run:
    """Tells what happens in one run. `has_answered` if the model wrote text after the last tool that ran here."""

    def __init__(self, outbox: EventQueue, path: Path = ()) -> None:
        outbox.runs.append(self)
        self.outbox = outbox
        self.path = path
        self.has_answered = False
        self.model_failure: ModelFailure | None = None
        self._open: dict[str, _RunCall] = {}
        self._told: set[str] = set()
        self._wishes: dict[str, tuple[str, str]] = {}

    def inside(self, agent: str) -> "Run":
        """The run of an agent that is asked by a tool of this one."""
        return Run(self.outbox, (*self.path, agent))

    def tell(self, event: Event) -> None:
        self.outbox.put(event)

    def read(self, piece: Piece) -> None:
        """A piece of what the model says."""
        match piece:
            case str():
                self.say(piece)
            case ReasoningEvent() | UsageEvent():
                self.tell(replace(piece, agent_path=self.path))
            case ToolWish():
                pass  # Told when the tool is run.

    def say(self, text: str) -> None:
        self.has_answered = True
        self.outbox.put(TokenEvent(text, agent_path=self.path) if self.path else text)

    def hand_over(self, agent: str) -> None:
        self.tell(HandoffEvent(agent, agent_path=self.path))

    # Tools

    def begin_call(self, call_id: str, tool: str, arguments: str) -> None:
        args = read_arguments(arguments) or {}
        self._told.add(call_id)
        is_new = self._find(call_id) is None
        self._open[call_id] = _RunCall(tool, time.perf_counter())
        if is_new:
            self.tell(ToolCallEvent(call_id, tool, args, agent_path=self.path))

    def fail_call(self, call_id: str, why: str | None = None) -> None:
        """The tool has raised; its result comes with its end, or is `why`."""
        if call := self._find(call_id):
            call.has_failed, call.why = True, why

    def note_outcome(self, call_id: str, outcome: ToolOutcome) -> None:
        """Of a tool of ours, whose end is still to come."""
        if call := self._find(call_id):
            call.has_failed, call.outcome = not outcome.success, outcome

    def end_call(self, call_id: str, result: Any, *, failed: bool = False) -> None:
        call = self._find(call_id)
        if call is None:
            return
        del self._open[call_id]
        ms = None if call.began is None else round((time.perf_counter() - call.began) * 1000, 1)
        told = call.outcome.result if call.outcome else loggable(result) if call.why is None else call.why
        success = not (failed or call.has_failed)
        self.tell(ToolResultEvent(call_id, call.tool, success, told, ms, agent_path=self.path))

    def _find(self, call_id: str) -> _RunCall | None:
        """A call that runs, perhaps since before the turn waited."""
        if call_id not in self._open and (tool := self.outbox.taken_up(self.path, call_id)):
            self._open[call_id] = _RunCall(tool, None)
        return self._open.get(call_id)

    def open_tools(self) -> list[tuple[str, str]]:
        return [(call_id, call.tool) for call_id, call in self._open.items()]

    def end_open_calls(self, error: Exception) -> None:
        """The run has failed, and these tools with it."""
        for call_id, call in list(self._open.items()):
            self.end_call(call_id, told_of(call.tool, error), failed=True)

    # What the SDK tells late

    def has_wish(self, call_id: str) -> bool:
        return call_id in self._wishes

    def note_wish(self, call_id: str, tool: str, arguments: str) -> None:
        self._wishes[call_id] = (tool, arguments)

    def note_output(self, call_id: str, output: Any) -> None:
        """An answer to a call that was never begun: the tool is not there, or a guardrail kept it from running."""
        wish = self._wishes.get(call_id)
        if wish is not None and call_id not in self._told:
            self.begin_call(call_id, *wish)
            self.end_call(call_id, output, failed=True)


# Where the SDK tells of tools and handoffs at once: its hooks, and the formatter of what a tool raised.


class Hooks(RunHooks[Any]):
    """Tells of a run, and calls the hooks that the run was given."""

    def __init__(self, run: Run, others: RunHooks[Any] | None) -> None:
        self.agent: Agent[Any] | None = None
        """Who is about to ask a model, or has asked it last."""
        self._run = run
        self._others = others or RunHooks[Any]()

    async def on_llm_start(
        self,
        context: RunContextWrapper[Any],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[TResponseInputItem],
    ) -> None:
        self.agent = agent
        await self._others.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        await self._others.on_llm_end(context, agent, response)

    async def on_agent_start(self, context: AgentHookContext[Any], agent: Agent[Any]) -> None:
        await self._others.on_agent_start(context, agent)

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Agent[Any], output: Any) -> None:
        await self._others.on_agent_end(context, agent, output)

    async def on_handoff(self, context: RunContextWrapper[Any], from_agent: Agent[Any], to_agent: Agent[Any]) -> None:
        self._run.hand_over(to_agent.name)
        await self._others.on_handoff(context, from_agent, to_agent)

    def on_tool_start(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool
    ) -> Coroutine[Any, Any, None]:
        # Not `async`: it is awaited in a task of its own, but called in the one that the tool is run from.
        set_running_call(_call_id(context, tool))
        return self._begin(context, agent, tool)

    async def _begin(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        arguments = context.tool_arguments if isinstance(context, ToolContext) else ""
        self._run.begin_call(_call_id(context, tool), tool.name, arguments)
        await self._run.outbox.taken()
        await self._others.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        self._run.has_answered = False
        self._run.end_call(_call_id(context, tool), result)
        await self._others.on_tool_end(context, agent, tool, result)


def _call_id(context: RunContextWrapper[Any], tool: Tool) -> str:
    # Shells, patches and the like are run one after the other, and their hooks are not told of which call.
    return context.tool_call_id if isinstance(context, ToolContext) else tool.name


def error_formatter(run: Run, given: ToolErrorFormatter | None) -> ToolErrorFormatter:
    """Notes which calls failed; the model is told what the application says, or no more than what kind of error."""

    def format_error(args: ToolErrorFormatterArgs[Any]) -> Any:
        run.fail_call(args.call_id)
        if given is not None:
            return given(args)
        # What is wrong with its arguments the model may know. What a tool raised by accident nobody should.
        if args.error is None or isinstance(args.error, ModelBehaviorError):
            return None
        return why_it_failed(args.tool_name, args.error)

    return format_error


def read_item(run: Run, event: object) -> None:
    """Tells of the calls that no hook told of: those that were answered without running a tool."""
    if not isinstance(event, RunItemStreamEvent):
        return
    raw: Any = event.item.raw_item
    call_id = _field(raw, "call_id")
    if call_id is None:
        return
    if isinstance(event.item, ToolCallItem):
        run.note_wish(call_id, _field(raw, "name") or "", _field(raw, "arguments") or "")
    elif isinstance(event.item, ToolCallOutputItem):
        run.note_output(call_id, event.item.output)


def _field(raw: Any, name: str) -> str | None:
    """Of an item that may be a dictionary or an object; the SDK has both."""
    value: object = cast("dict[str, object]", raw).get(name) if isinstance(raw, dict) else getattr(raw, name, None)
    return value if isinstance(value, str) else None
