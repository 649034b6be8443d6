"""Events of a run from LangChain's callbacks: text, reasoning, tools, usage, truncated replies.

LangChain calls a callback at once, in the task or thread of the model or tool, and a callback may raise: so a truncated
reply ends the run before its tools are called, and a tool is not called with arguments that cannot be parsed.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from pydantic_core import PydanticCustomError, ValidationError

from turnwire.agents.agent_paths import Path, enter_agent, leave_agent
from turnwire.agents.langgraph.messages import (
    Output,
    check_complete,
    is_transfer,
    message_events,
    read_text,
    reply_of,
    tool_message,
    usage_event,
)
from turnwire.core.errors import TurnEndedError
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import CustomEvent, Event, ReasoningEvent, ToolCallEvent, ToolResultEvent
from turnwire.core.log.history import PARAGRAPH
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import elapsed_ms, loggable, plain, set_running_call, tool_error_text

Flushed = asyncio.Event | threading.Event
"""A marker in the queue; the reader sets it when everything before it is written."""
_FLUSH_TIMEOUT_SECONDS = 30
MESSAGES_MODULE = "langgraph.pregel._messages"
"""The module of the handler that fills LangGraph's stream of messages."""


class EventRelay:
    """Relay from any thread to the turn's event loop, in order. `flush` makes events precede the tool they announce."""

    def __init__(self, turn_id: str, put: Callable[[Output | Flushed], None]) -> None:
        self._turn_id = turn_id
        self._put = put
        self._waiting: set[asyncio.Event | threading.Event] = set()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def send(self, output: Output | Flushed) -> None:
        if self._is_on_loop():
            self._put(output)
        else:
            self._loop.call_soon_threadsafe(self._put, output)

    def flush_in_thread(self) -> None:
        """Wait in a thread until everything sent is written; do nothing on the event loop, where `flush` is used.

        Raises TurnEndedError to stop the tool of an ended turn, because a thread cannot be cancelled.
        """
        if self._is_on_loop():
            return
        flushed = threading.Event()
        self._waiting.add(flushed)
        if not self._is_closed:
            self.send(flushed)
            flushed.wait(_FLUSH_TIMEOUT_SECONDS)
        self._waiting.discard(flushed)
        if self._is_closed:
            raise TurnEndedError(self._turn_id)

    async def flush(self, send: Callable[[Any], None] | None = None) -> None:
        """Wait on the event loop until everything sent is written; do nothing on another loop.

        With `send`, the marker is sent with that function, after everything that was sent with it before.

        Raises CancelledError when the turn has ended, since LangChain shields its callbacks from being cancelled.
        """
        if asyncio.get_running_loop() is self._loop:
            flushed = asyncio.Event()
            self._waiting.add(flushed)
            if not self._is_closed:
                (send or self.send)(flushed)
                await flushed.wait()
            self._waiting.discard(flushed)
            if self._is_closed:
                raise asyncio.CancelledError

    def close(self) -> None:
        self._is_closed = True
        for flushed in tuple(self._waiting):
            flushed.set()

    def _is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread


class ToolBarrier(AsyncCallbackHandler):
    """Callback that holds async tools back until their call is in the log; the listener does that for sync tools.

    It comes after the listener. Sync code calls it too, in a loop of its own, where it does nothing.
    """

    run_inline = True

    def __init__(self, relay: EventRelay) -> None:
        self._relay = relay

    @property
    def ignore_llm(self) -> bool:
        """Skip the tokens of models."""
        return True

    async def on_tool_start(self, serialized: dict[str, Any], input_str: str, **rest: Any) -> None:
        await self._relay.flush()


class _ModelRun:
    """A running model call."""

    def __init__(self, path: Path, records_text: bool) -> None:
        self.path = path
        self.records_text = records_text
        self.has_text = False
        self.is_streaming = False
        self.is_recorded = False
        self.is_shown = False
        self.arguments: dict[Any, tuple[list[str], list[str]]] = {}


class ToolRun:
    """A running tool call: the id the model gave it, and the id it has in the log."""

    def __init__(self, requested_id: str, call_id: str, tool: str, args: dict[str, Any], path: Path) -> None:
        self.requested_id = requested_id
        self.call_id = call_id
        self.tool = tool
        self.args = args
        self.path = path
        self.began = time.perf_counter()

    def result(self, success: bool, result: Any) -> ToolResultEvent:
        ms = elapsed_ms(self.began)
        return ToolResultEvent(self.call_id, self.tool, success, result, ms, agent_path=self.path)


def _followed_runs(handler: BaseCallbackHandler) -> Set[UUID]:
    """Return the runs that are reported in the stream of messages; nothing for a handler that is not LangGraph's."""
    is_stream = type(handler).__module__ == MESSAGES_MODULE
    return getattr(handler, "metadata", {}).keys() if is_stream else frozenset()


def _muted(handler: BaseCallbackHandler) -> BaseCallbackHandler:
    """Return a copy of the handler that ignores tokens and shares the state. Without it, models would not stream."""
    muted: Any = copy(handler)
    muted.on_llm_new_token = _ignore
    return muted


def _ignore(*args: Any, **rest: Any) -> None:
    pass


class GraphListener(BaseCallbackHandler):
    """Callback handler that records a run; with `records_text` also the text of the models.

    `calls` has the tool calls, and `tasks` the names of the graph's tasks. `has_answered` is True if text of the answer
    was recorded. `failed_tools` and `model_error` tell which part of the run raised an exception. `name_call` is called
    for a tool call without an id, `find_path` for the path of a sub-agent.
    """

    run_inline = True
    raise_error = True

    def __init__(self, relay: EventRelay, *, records_text: bool, answer_nodes: Collection[str] | None = None) -> None:
        self.model = ""
        self.model_error: BaseException | None = None
        self.failed_tools: list[tuple[Exception, str]] = []
        self.has_answered = False
        self.calls = GraphToolCalls()
        self.tasks = TaskNames()
        self.name_call: Callable[[str, Mapping[str, Any]], str] | None = None
        self.find_path: Callable[[Path, str | None, str], tuple[Path | None, frozenset[Path]]] | None = None
        self._relay = relay
        self._records_text = records_text
        self._answer_nodes = answer_nodes
        self._models: dict[UUID, _ModelRun] = {}
        self._tools: dict[UUID, ToolRun] = {}
        self._authors: dict[str, Path] = {}
        self._names: dict[Path, str] = {}
        self._nodes: dict[UUID, Path] = {}
        self._graphs: set[UUID] = set()
        self._own_nodes: set[UUID] = set()
        self._paths: dict[Path, Path] = {}
        self._tool_spaces: dict[Path, str] = {}

    async def flush(self) -> None:
        """Wait until everything recorded is written."""
        await self._relay.flush()

    def path_of(self, space: tuple[str, ...]) -> Path:
        """Return the names of the subgraphs of a checkpoint namespace; a LangChain agent has a name of its own."""
        if not space:
            return ()
        if space not in self._paths:
            name = self._names.get(space) or space[-1].partition(":")[0]
            parent, call_id = self.path_of(space[:-1]), self._tool_spaces.get(space)
            recorded, reserved = None, frozenset[Path]()
            if self.find_path is not None:
                recorded, reserved = self.find_path(parent, call_id, self.tasks.name_around(space))
            self._paths[space] = enter_agent(parent, name, call_id, recorded=recorded, reserved=reserved)
        return self._paths[space]

    # The nodes that run

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        if parent_run_id is None:
            self._graphs.add(run_id)
        elif parent_run_id in self._graphs:
            self._own_nodes.add(run_id)
        self._owner(metadata)
        self.tasks.name_of(metadata or {})
        if (space := _space(metadata)) and space not in self._nodes.values():
            self._nodes[run_id] = space

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **rest: Any) -> None:
        self._leave(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._leave(run_id)

    def _leave(self, run_id: UUID) -> None:
        """Release the path of a node that has ended, so that its next run has the same path."""
        self._own_nodes.discard(run_id)
        if (space := self._nodes.pop(run_id, None)) in self._paths:
            leave_agent(self._paths[space])

    def close(self) -> None:
        """Release the paths of the nodes that were stopped."""
        for path in self._paths.values():
            leave_agent(path)

    def is_no_answer(self, message: BaseMessage) -> bool:
        """Return True if the message was recorded as the text of a subgraph or of a node that does not answer."""
        return bool(self._authors.get(message.id or ""))

    def read_message(self, message: BaseMessage, metadata: Mapping[str, Any], space: Path) -> Sequence[Output]:
        """Return events that no callback reported: a node's own text, and results of tools that never ran."""
        path = self.path_of(space)
        if isinstance(message, AIMessageChunk) or is_transfer(message):
            return ()  # Nearly every message is a chunk, whose text a callback has reported.
        if isinstance(message, ToolMessage):
            return list(self.calls.result_of(message, path))
        if not isinstance(message, AIMessage) or message.id in self._authors:
            return ()
        path = self._text_path(metadata, path)
        self._authors[message.id or ""] = path
        has_text = not path and bool(read_text(message))
        before = [PARAGRAPH] if has_text and self.has_answered else []
        self.has_answered = self.has_answered or has_text
        return [*before, *message_events(message, path)]

    def mute_message_stream(self, handlers: Iterable[BaseCallbackHandler]) -> list[BaseCallbackHandler]:
        """Return the handlers of a model call, changed so that no tokens enter the graph's stream of messages.

        The listener records the tokens itself, and to send a token through the graph costs more than all else that is
        done with it. A stream that code inside a node has opened is left alone: it has not seen the nodes of the turn's
        own graph begin.
        """
        return [_muted(each) if self._own_nodes & _followed_runs(each) else each for each in handlers]

    def pause(self) -> None:
        """Mark the running tool calls as paused: the graph was interrupted and runs them again when it resumes."""
        for call in self._tools.values():
            self.calls.pause(call.requested_id, call.call_id)

    # Models

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        path = self.text_path(metadata or {})
        # A reply of `with_structured_output` is for the code that called the model, not for people.
        is_for_code = TAG_NOSTREAM in (tags or ()) or "ls_structured_output_format" in rest.get("options", {})
        # Nor is the JSON of a sub-agent with a response format.
        is_for_code = is_for_code or (bool(path) and "response_format" in rest.get("invocation_params", {}))
        self._models[run_id] = _ModelRun(path, self._records_text and not is_for_code)
        self.model = str((metadata or {}).get("ls_model_name") or self.model)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **rest: Any) -> None:
        model = self._models.get(run_id)
        if model is None or not isinstance(chunk, ChatGenerationChunk):
            return
        model.is_streaming = True
        self._record_text(chunk.message, model)
        if isinstance(chunk.message, AIMessageChunk):
            for piece in chunk.message.tool_call_chunks:
                ids, texts = model.arguments.setdefault(piece["index"], ([], []))
                ids.append(piece["id"] or "")
                texts.append(piece["args"] or "")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **rest: Any) -> None:
        model = self._models.pop(run_id, None)
        message = reply_of(response)
        if model is None or message is None:
            return
        if message.id:
            self._authors[message.id] = model.path
        if model.is_shown:
            self.has_answered |= model.records_text and not model.path and bool(read_text(message))
        elif not model.is_streaming:
            self._record_text(message, model)
        if not model.is_recorded and (usage := usage_event(message, model.path)):
            self._relay.send(usage)
        check_complete(message)
        self.calls.read_requests(message, model.arguments.values())

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._models.pop(run_id, None)
        self.model_error = error

    def use_recorded(self, run_id: UUID, *, is_shown: bool, invalid: Iterable[str]) -> None:
        """Note that the reply of a running model call comes from the journal, and whether its text is in the log."""
        if model := self._models.get(run_id):
            model.is_recorded, model.is_shown = True, is_shown
        self.calls.invalid.update(invalid)

    def restore_reply(self, message: AIMessage, path: Path, *, is_hidden: bool, invalid: Iterable[str]) -> None:
        """Note a reply whose call is not repeated, since the node around it has ended."""
        self._authors[message.id or ""] = path
        self.has_answered |= not is_hidden and not path and bool(read_text(message))
        self.calls.invalid.update(invalid)
        self.calls.read_requests(message, ())

    def restore_text(self, message_id: str, path: Path) -> None:
        """Note a text of a node that is not run again."""
        self._authors[message_id] = path
        self.has_answered |= not path

    def is_hidden(self, run_id: UUID) -> bool:
        """Return True if the text of a running model call is not for people."""
        return run_id in self._models and not self._models[run_id].records_text

    def _record_text(self, message: BaseMessage, model: _ModelRun) -> None:
        for event in message_events(message, model.path):
            if not model.records_text and not isinstance(event, ReasoningEvent):
                continue
            if isinstance(event, str):
                if self.has_answered and not model.has_text:
                    self._relay.send(PARAGRAPH)
                self.has_answered = model.has_text = True
            self._relay.send(event)

    # Tools

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        tool = rest.get("name") or (serialized or {}).get("name") or "tool"
        own_id = (
            self.name_call(tool, metadata or {}) if self.name_call and not rest.get("tool_call_id") else str(run_id)
        )
        requested_id = rest.get("tool_call_id") or own_id
        self._tool_spaces[_space(metadata)] = requested_id
        call_id, is_new = self.calls.begin(requested_id)
        args = plain(self.calls.arguments(requested_id, inputs if inputs is not None else {"input": input_str}))
        call = self._tools[run_id] = ToolRun(requested_id, call_id, tool, args, self.path_in(metadata))
        if is_new:
            shown = self.calls.shown_arguments(requested_id, args)
            self._relay.send(ToolCallEvent(call_id, tool, shown, agent_path=call.path))
        self._relay.flush_in_thread()
        set_running_call(call_id)
        if requested_id in self.calls.invalid:
            del self._tools[run_id]
            error = PydanticCustomError("json_invalid", "they are not a JSON object")
            raise ValidationError.from_exception_data(tool, [{"type": error, "loc": ("arguments",), "input": None}])

    def on_tool_end(self, output: Any, *, run_id: UUID, **rest: Any) -> None:
        if call := self._tools.pop(run_id, None):
            self.calls.end(call.call_id)
            message = tool_message(output, call.requested_id)
            failed = message is not None and message.status == "error"
            self._relay.send(call.result(not failed, loggable(output if message is None else message.content)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        call = self._tools.pop(run_id, None)
        # Interrupts and cancellation leave a tool by exceptions too; they are no failures.
        if call is not None and isinstance(error, GraphBubbleUp):
            self.calls.pause(call.requested_id, call.call_id)
        if call is None or isinstance(error, GraphBubbleUp | TurnEndedError) or not isinstance(error, Exception):
            return
        self.failed_tools.append((error, call.tool))
        if isinstance(error, ValidationError):
            return  # The graph writes the error to a message, which is the result.
        self.calls.end(call.call_id)
        self._relay.send(call.result(False, tool_error_text(call.tool, error)))

    def find_tool(self, call_id: str | None) -> ToolRun | None:
        """Return a running tool call by its id in the log."""
        return next((call for call in tuple(self._tools.values()) if call.call_id == call_id), None)

    # Custom events, and agent paths

    def on_custom_event(
        self, name: str, data: Any, *, run_id: UUID, metadata: dict[str, Any] | None = None, **rest: Any
    ) -> None:
        self._relay.send(CustomEvent(name=name, data=plain(data), agent_path=self.path_in(metadata)))

    def path_in(self, metadata: Mapping[str, Any] | None) -> Path:
        """Return the agent path of the graph that a node belongs to."""
        return self.path_of(self._owner(metadata))

    def _owner(self, metadata: Mapping[str, Any] | None) -> Path:
        """Return the namespace of the graph that a node belongs to, and note the graph's name."""
        metadata = metadata or {}
        # The last part is the node itself; a `@task` belongs to its caller's graph, one part further down.
        depth, path = 1, metadata.get("langgraph_path", ())
        while len(path) == 4 and path[0] == "__pregel_push" and path[-1] is True:
            depth, path = depth + 1, path[1]
        space = _space(metadata)[:-depth]
        if space and (name := metadata.get("lc_agent_name")):
            self._names.setdefault(space, name)
        return space

    def text_path(self, metadata: Mapping[str, Any]) -> Path:
        """Return the agent path of the text that a model writes in a node."""
        return self._text_path(metadata, self.path_in(metadata))

    def _text_path(self, metadata: Mapping[str, Any], path: Path) -> Path:
        node = metadata.get("langgraph_node")
        is_other = not path and self._answer_nodes is not None and node is not None and node not in self._answer_nodes
        return self.path_of(_space(metadata)) if is_other else path


def _space(metadata: Mapping[str, Any] | None) -> Path:
    """Return the checkpoint namespace of a node, which is its path of graphs and tasks."""
    namespace = (metadata or {}).get("langgraph_checkpoint_ns")
    return tuple(str(namespace).split("|")) if namespace else ()


class TaskNames:
    """Names of a graph's tasks that are the same when the graph runs again, unlike LangGraph's task ids.

    A name has the steps since the first one, the node, and for a `Send` or a `@task` its number; for a task of a
    subgraph it begins with the name of the task around it.
    """

    def __init__(self) -> None:
        self._names: dict[Path, str] = {}
        self._first_steps: dict[Path, int] = {}

    def name_of(self, metadata: Mapping[str, Any]) -> str:
        """Return the name of the task that code belongs to; empty outside a graph."""
        space = _space(metadata)
        if not space:
            return ""
        if space not in self._names:
            step: int = metadata.get("langgraph_step", 0)
            first = self._first_steps.setdefault(space[:-1], step)
            outer = [self.name_around(space[:-1])] if len(space) > 1 else []
            numbers = "".join(f".{number}" for number in _numbers(metadata.get("langgraph_path", ())))
            self._names[space] = "|".join([*outer, f"{step - first}:{metadata.get('langgraph_node', '')}{numbers}"])
        return self._names[space]

    def name_around(self, space: Path) -> str:
        """Return the name of the task that a subgraph with this namespace belongs to."""
        # A part without a node of its own is the number of a subgraph that a node calls several times.
        return self._names.get(space) or "|".join(
            filter(None, (self.name_around(space[:-1]) if space[1:] else "", space[-1]))
        )


def _numbers(path: Any) -> Iterator[int]:
    """Yield the numbers in the path of a task, which tell apart the tasks of one node."""
    for part in path:
        if isinstance(part, tuple | list):
            yield from _numbers(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            yield part


class GraphToolCalls:
    """The tool calls of a run: requested by the model, decided by a person, begun, ended.

    A call has the id that the model gave it; a retry of the graph has an id of its own. `invalid` are the calls whose
    arguments are no JSON object.
    """

    def __init__(self) -> None:
        self.invalid: set[str] = set()
        self.decided: dict[str, Decision] = {}
        self._requests: dict[str, tuple[str, dict[str, Any]]] = {}
        self._tries: Counter[str] = Counter()
        self._results: set[str] = set()
        self._paused: dict[str, str] = {}

    def read_requests(self, message: AIMessage, pieces: Iterable[tuple[list[str], list[str]]]) -> None:
        """Read the calls of a reply, with the streamed pieces of their ids and arguments.

        LangChain repairs truncated arguments and drops calls whose arguments are no object. Here such a call is made
        without arguments and then rejected with the reason.
        """
        for ids, texts in pieces:
            if read_arguments("".join(texts)) is None:
                self.invalid.add("".join(ids))
        for call in message.invalid_tool_calls:
            self.invalid.add(call["id"] or "")
            message.tool_calls.append({"name": call["name"] or "", "args": {}, "id": call["id"], "type": "tool_call"})
        message.invalid_tool_calls = []
        for call in message.tool_calls:
            if call["id"] in self.invalid:
                call["args"] = {}
            self._requests[call["id"] or ""] = call["name"], call["args"]

    def begin(self, requested_id: str) -> tuple[str, bool]:
        """Return the id of a call in the log, and False if the call goes on after an interrupt."""
        if requested_id in self._paused:
            return self._paused.pop(requested_id), False
        # A retry is another call: the first one has its result, and an id stands for one call and result.
        self._tries[requested_id] += 1
        tries = self._tries[requested_id]
        return requested_id if tries == 1 else f"{requested_id}-{tries}", True

    def arguments(self, requested_id: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments the model wrote; for a decided call the actual ones, which must match the decision."""
        is_requested = requested_id in self._requests and requested_id not in self.decided
        return self._requests[requested_id][1] if is_requested else inputs

    def shown_arguments(self, requested_id: str, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for the log: of a call that a person has changed, those of the model."""
        decision = self.decided.get(requested_id)
        is_changed = decision is not None and decision.requested_args is not None and decision.args == args
        return (decision.requested_args or {}) if decision is not None and is_changed else args

    def end(self, call_id: str) -> None:
        self._results.add(call_id)

    def pause(self, requested_id: str, call_id: str) -> None:
        """Mark a call as interrupted by an approval request inside it."""
        self._paused[requested_id] = call_id

    def result_of(self, message: ToolMessage, path: Path) -> Iterator[Event]:
        """Yield the events of a call that was answered without running a tool."""
        call_id, tool = message.tool_call_id, message.name or "tool"
        if call_id in self._results:
            return
        if call_id not in self._tries:
            self._tries[call_id] += 1
            args = self.decided[call_id].args if call_id in self.decided else self.arguments(call_id, {})
            yield ToolCallEvent(call_id, tool, plain(args), agent_path=path)
        self.end(call_id)
        yield ToolResultEvent(call_id, tool, message.status != "error", loggable(message.content), agent_path=path)

    def find_request(self, tool: str, args: dict[str, Any], excluded: Collection[str]) -> str | None:
        """Return the id of a requested call with this tool and arguments that has not begun."""
        matching = (call_id for call_id, request in self._requests.items() if request == (tool, args))
        return next((call_id for call_id in matching if call_id not in excluded and call_id not in self._tries), None)
