"""Continuation of graphs and runnables after a crash: replies of models and results of tools come from the journal.

The graph runs again from its start. LangChain's models and tools are wrapped (see
`runner`). A call is found by its task in the graph (step, node and number of a `Send`; the task id differs in each
run), and within the task by its number, or by its request if the task makes several calls at a time. A tool call is
found by its id. Failures of models and tools are recorded too, so that the code that handled them handles them again.
"""

import asyncio
import base64
import importlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_stream_writer
from langgraph.constants import START
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]
from pydantic_core import to_jsonable_python

from turnwire.agents.agent_paths import Path
from turnwire.agents.context_changes import is_plain
from turnwire.agents.langgraph.events import EventRelay, GraphListener, ToolRun
from turnwire.agents.langgraph.messages import Output, reply_of
from turnwire.agents.langgraph.options import add_to_call
from turnwire.agents.langgraph.tools import OfferedTools
from turnwire.core.errors import TurnEndedError
from turnwire.core.journal.turn_journal import (
    APPROVAL,
    JournaledCall,
    RecordedCall,
    ToolDeniedError,
    TurnJournal,
    fingerprint,
    is_inside,
)
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import ReasoningEvent, TokenEvent, Usage
from turnwire.core.log.model_options import ModelOptions
from turnwire.tools.invocation import plain

T = TypeVar("T")
Metadata = Mapping[str, Any]
_serializer = JsonPlusSerializer()
_outer_call: ContextVar[str] = ContextVar("turnwire_langgraph_call", default="")
"""The place of the tool call that the current code belongs to."""


class GraphRecorder:
    """Records the calls of a graph's run in the turn's journal, and finds those that are recorded already."""

    def __init__(
        self,
        journal: TurnJournal,
        turn_id: str,
        listener: GraphListener,
        relay: EventRelay,
        offered: OfferedTools | None = None,
        options: ModelOptions | None = None,
    ) -> None:
        self.listener = listener
        self._offered = offered
        self._options = options if options and options.names else None
        self._journal = journal
        self._turn_id = turn_id
        self._relay = relay
        self._loop = asyncio.get_running_loop()
        self._waits: set[Future[Any]] = set()
        self._is_closed = False
        self._calls: dict[UUID, JournaledCall] = {}
        self._numbers = _CallNumbers(journal)
        self._tool_numbers: Counter[str] = Counter()
        self.interrupt_places: dict[str, str] = {}
        """The places of the tools and nodes that have called `interrupt()` and not been resumed, by its id."""
        listener.name_call = self._name_call
        if journal.recording.calls:
            listener.find_path = self._find_path

    # Nodes

    def find_output(self, node: str, metadata: Metadata) -> dict[str, Any] | None:
        """Return the recorded output of a node that has ended, and note the calls that are not made again."""
        place = self.place_of(metadata)
        step = self._journal.find_step(place)
        if step is None or step.entry.names != (node,):
            return None
        for key, call in self._journal.recording.calls.items():
            if is_inside(key, place) and call.is_finished:
                self._note_skipped(call)
        return json.loads(step.result)

    def _note_skipped(self, call: RecordedCall) -> None:
        path, result = call.entry.agent_path, json.loads(call.result)
        if call.entry.names == (APPROVAL,):
            decision = msgspec.convert(result, Decision)
            self.listener.calls.decided[decision.call_id] = decision
        elif call.entry.kind == "tool":
            self.listener.calls.end(call.entry.call_id)
        elif call.entry.kind == "model" and "text" in result:
            self.listener.restore_text(result["text"], path)
        elif call.entry.kind == "model" and "message" in result:
            message = _restore_reply(result["message"])
            self.listener.restore_reply(message, path, is_hidden=result["hidden"], invalid=result["invalid"])

    async def end_node(self, node: str, metadata: Metadata, since: int, output: Any) -> None:
        """Record the output of a node, when everything that the node has written is in the log."""
        recorded = _record_result(output)
        if "value" not in recorded or is_plain(output):
            await self._relay.flush(get_stream_writer())
            self._journal.finish_step(self.place_of(metadata), node, since, recorded)

    @property
    def position(self) -> int:
        return self._journal.position

    def extended(self, graph: Any) -> Any:
        """Return a graph that runs the client's tools too."""
        return graph if self._offered is None else self._offered.add_to_graph(graph)

    def inside(self, metadata: Metadata) -> AbstractContextManager[None]:
        """Make questions in this context belong to a task of the graph."""
        return self._journal.inside(self.place_of(metadata))

    # Interrupts

    def note_interrupt(self, error: BaseException, place: str) -> None:
        """Note the place of a call of `interrupt()`, the innermost first."""
        if isinstance(error, GraphInterrupt):
            for interrupt in error.args[0]:
                self.interrupt_places.setdefault(interrupt.id, place)

    def interrupted(self, interrupt_id: str) -> AbstractContextManager[None]:
        """Make waits in this context belong to the tool or node that has called `interrupt()`."""
        return self._journal.inside(self.interrupt_places.get(interrupt_id, ""))

    def own_id(self) -> str:
        """Return an id for a request without a tool call: the same when the turn is continued."""
        return f"interrupt-{fingerprint([self._journal.recording.segment, self._journal.place('interrupt')])[:16]}"

    # Models

    async def begin_reply(
        self, run_id: UUID, model: BaseChatModel, metadata: Metadata, messages: Sequence[BaseMessage]
    ) -> JournaledCall:
        """Begin a model call, when everything before it is in the log; or return the one that has begun already."""
        if run_id in self._calls:
            return self._calls[run_id]
        digest = fingerprint([_comparable(message) for message in messages])
        place = self._numbers.next(self.place_of(metadata), digest)
        await self._relay.flush()
        self._calls[run_id] = await self._journal.begin_model(
            place,
            names=(metadata.get("langgraph_node") or "", _model_name(model)),
            fingerprint=digest,
            agent_path=self.listener.text_path(metadata),
        )
        return self._calls[run_id]

    async def end_reply(self, run_id: UUID, result: dict[str, Any], usage: Usage | None = None) -> None:
        """Record a live reply when its text is in the log; for a recorded reply, note that its text is shown again."""
        call = self._calls.pop(run_id, None)
        if call is None or (not call.is_live and call.is_shown):
            return
        await self._relay.flush()
        if call.is_live:
            call.finish(result, usage=usage)
        else:
            call.show()

    def request_options(
        self, model: BaseChatModel, metadata: Metadata, options: dict[str, Any], stop: Any, messages: Sequence[Any]
    ) -> tuple[dict[str, Any], Any]:
        """Return the options and stop words of a model call, with the client's if the graph's own agent makes it."""
        if _outer_call.get() or self.listener.path_in(metadata):
            return options, stop
        if self._offered is not None:
            options = self._offered.add_to_request(model, options)
        if self._options is not None:
            has_called = bool(messages) and isinstance(messages[-1], ToolMessage)
            options = add_to_call(self._options, model, options, has_called=has_called)
        return options, options.pop("stop", stop)

    def drop_reply(self, run_id: UUID) -> None:
        """Forget a model call that was stopped."""
        if call := self._calls.pop(run_id, None):
            call.__exit__(None, None, None)

    def recorded_reply(self, run_id: UUID, call: JournaledCall) -> ChatResult:
        """Return the recorded reply, or raise its error."""
        self.listener.use_recorded(run_id, is_shown=call.is_shown, invalid=call.result.get("invalid", ()))
        if error := call.result.get("error"):
            raise _restore_error(error)
        generation = ChatGeneration(
            message=_restore_reply(call.result["message"]), generation_info=call.result.get("info")
        )
        return ChatResult(generations=[generation])

    @property
    def shown(self) -> int:
        """Return the length of the answer in the log."""
        return len(self._journal.text)

    async def write(self, message_id: str, outputs: Sequence[Output], metadata: Metadata) -> AsyncGenerator[Output]:
        """Yield the text that a node wrote itself, without a model, unless it is in the log already."""
        texts = [output for output in outputs if isinstance(output, str | TokenEvent | ReasoningEvent)]
        if not texts:
            for output in outputs:
                yield output
            return
        path = next((text.agent_path for text in texts if not isinstance(text, str)), ())
        place = self._numbers.next(f"{self.place_of(metadata)}/text", "")
        await self._relay.flush()
        names = (metadata.get("langgraph_node") or "", "text")
        call = await self._journal.begin_model(place, names=names, agent_path=path)
        with call:
            if not call.is_live and call.is_shown:
                return
            for output in outputs:
                yield output
            await self._relay.flush()
            if call.is_live:
                call.finish({"text": message_id})
            else:
                call.show()

    # Tools

    async def call_tool(self, tool: BaseTool, call: ToolRun, metadata: Metadata, run: Callable[[], Any]) -> Any:
        """Call a tool once: after a crash its recorded result is returned, or its recorded error raised."""
        place = self.place_of(metadata)
        try:
            begun = await self._begin_tool(tool, call, place)
        except ToolDeniedError as denied:
            return ToolMessage(str(denied), tool_call_id=call.requested_id, name=tool.name, status="error")
        with begun:
            if not begun.is_live:
                return _restore_result(begun.result)
            token = _outer_call.set(f"{place}:{call.call_id}")
            try:
                result = await run()
            except GraphBubbleUp as error:
                self.note_interrupt(error, f"{place}:{call.call_id}")
                begun.wait()
                raise
            except Exception as error:
                begun.finish({"error": _record_error(error)})
                raise
            finally:
                _outer_call.reset(token)
            begun.finish(_record_result(result))
        return result

    def call_tool_in_thread(self, tool: BaseTool, call: ToolRun, metadata: Metadata, run: Callable[[], Any]) -> Any:
        """Do the same as `call_tool` in a thread."""
        place = self.place_of(metadata)
        try:
            begun = self.wait(self._begin_tool(tool, call, place))
        except ToolDeniedError as denied:
            return ToolMessage(str(denied), tool_call_id=call.requested_id, name=tool.name, status="error")
        with begun:
            if not begun.is_live:
                return _restore_result(begun.result)
            token = _outer_call.set(f"{place}:{call.call_id}")
            try:
                result = run()
            except GraphBubbleUp as error:
                self.note_interrupt(error, f"{place}:{call.call_id}")
                self.wait(_wait(begun))
                raise
            except Exception as error:
                self.wait(_finish(begun, {"error": _record_error(error)}))
                raise
            finally:
                _outer_call.reset(token)
            self.wait(_finish(begun, _record_result(result)))
        return result

    async def _begin_tool(self, tool: BaseTool, call: ToolRun, place: str) -> JournaledCall:
        await self._relay.flush()
        return await self._journal.begin_tool(place, call.call_id, tool.name, call.args, agent_path=call.path)

    def _name_call(self, tool: str, metadata: Metadata) -> str:
        """Return an id for a tool call that no model has requested: the same when the turn is continued."""
        place = f"{self._journal.recording.segment}/{self.place_of(metadata)}/{tool}"
        self._tool_numbers[place] += 1
        return f"{tool}-{fingerprint([place, self._tool_numbers[place]])[:16]}"

    def _find_path(self, parent: Path, call_id: str | None, task: str) -> tuple[Path | None, frozenset[Path]]:
        """Return the recorded path of a sub-agent, in a tool call or a subgraph, and the paths of others."""
        inside = f":{call_id}/" if call_id else f"{task}|"
        for key, call in self._journal.recording.calls.items():
            path = call.entry.agent_path
            if inside in key and len(path) > len(parent) and path[: len(parent)] == parent:
                return path[: len(parent) + 1], frozenset()
        return None, self._journal.reserved_paths()

    # Places and threads

    def place_of(self, metadata: Metadata) -> str:
        return "/".join(filter(None, (_outer_call.get(), self.listener.tasks.name_of(metadata))))

    @property
    def is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the turn's loop, from any loop."""
        if self.is_on_loop:
            return await work
        return await asyncio.wrap_future(self._submit(work))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait in a thread for a coroutine on the turn's loop. Raises TurnEndedError to stop the thread."""
        future = self._submit(work)
        try:
            return future.result()
        except CancelledError:
            raise TurnEndedError(self._turn_id) from None

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._is_closed:
            work.close()
            raise TurnEndedError(self._turn_id)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waits.add(future)
        future.add_done_callback(self._waits.discard)
        return future

    def close(self) -> None:
        self._is_closed = True
        for future in tuple(self._waits):
            future.cancel()


async def _finish(call: JournaledCall, result: Any) -> None:
    call.finish(result)


async def _wait(call: JournaledCall) -> None:
    call.wait()


class _CallNumbers:
    """Numbers of the model calls of each task; calls at the same time are told apart by their requests."""

    def __init__(self, journal: TurnJournal) -> None:
        self._recorded: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._next: defaultdict[str, int] = defaultdict(int)
        for call in journal.recording.calls.values():
            if call.entry.kind == "model":
                place, _, number = call.entry.key.rpartition("#")[0].rpartition("/")
                self._recorded[place][int(number)] = call.entry.fingerprint

    def next(self, place: str, digest: str) -> str:
        """Return the place of the next call: that of a recorded one with this request, or else the first that is free.

        A prompt with a clock in it is another request when the turn is continued, so no call has to match.
        """
        recorded = self._recorded[place]
        number = next((number for number, request in recorded.items() if request == digest), None)
        if number is None:
            number = min(recorded, default=self._next[place])
        recorded.pop(number, None)
        self._next[place] = max(self._next[place], number + 1)
        return f"{place}/{number}"


class ModelRecorder(AsyncCallbackHandler):
    """Callback that records the end of model calls. It comes after the listener, which may refuse a reply."""

    run_inline = True
    raise_error = True

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self._hidden: dict[UUID, bool] = {}

    async def on_chat_model_start(self, *args: Any, run_id: UUID, **rest: Any) -> None:
        self._hidden[run_id] = self._recorder.listener.is_hidden(run_id)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **rest: Any) -> None:
        generation = next((generation for group in response.generations for generation in group), None)
        message = reply_of(response)
        result: dict[str, Any] = {}
        if message is not None and generation is not None:
            result = {
                "message": message.model_dump(mode="json", warnings=False, fallback=str),
                "info": plain(generation.generation_info),
                "hidden": self._hidden.pop(run_id, False),
                "invalid": [call["id"] for call in message.tool_calls if call["id"] in self._invalid],
            }
        spent = message.usage_metadata if message is not None else None
        usage = Usage(spent["input_tokens"], spent["output_tokens"]) if spent else None
        await self._recorder.on_loop(self._recorder.end_reply(run_id, result, usage))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._hidden.pop(run_id, None)
        if isinstance(error, Exception):
            await self._recorder.on_loop(self._recorder.end_reply(run_id, {"error": _record_error(error)}))
        else:
            self._recorder.drop_reply(run_id)

    @property
    def _invalid(self) -> set[str]:
        return self._recorder.listener.calls.invalid


class _JournaledNode(Runnable[Any, Any]):
    """The code of a node, which is not run again if it had ended before a crash."""

    def __init__(self, name: str, inner: Runnable[Any, Any], recorder: GraphRecorder) -> None:
        self.name = name
        self._inner = inner
        self._recorder = recorder

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._inner.invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        recorder, name, metadata = self._recorder, self.name or "", ensure_config(config).get("metadata") or {}
        if not recorder.is_on_loop:
            return await self._inner.ainvoke(input, config, **kwargs)
        if (recorded := recorder.find_output(name, metadata)) is not None:
            return _restore_result(recorded)
        since = recorder.position
        try:
            with recorder.inside(metadata):
                output = await self._inner.ainvoke(input, config, **kwargs)
        except GraphInterrupt as error:
            recorder.note_interrupt(error, recorder.place_of(metadata))
            raise
        await recorder.end_node(name, metadata, since, output)
        return output


def journal_nodes(graph: Any, recorder: GraphRecorder) -> Any:
    """Return a copy of the graph whose nodes, also those of its subgraphs, are not run again when they have ended."""
    nodes: dict[str, Any] = dict(graph.nodes)
    for name, node in nodes.items():
        if name != START and node.timeout is None:
            bound: Any = node.bound
            inner = journal_nodes(bound, recorder) if isinstance(bound, Pregel) else bound
            nodes[name] = node.copy({"bound": _JournaledNode(name, inner, recorder)})
    return graph.copy({"nodes": nodes})


# Recorded values


def _comparable(message: BaseMessage) -> Any:
    """Return what a message says, without the ids of the SDK, which differ from run to run."""
    calls = [(call["name"], call["args"]) for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return to_jsonable_python((message.type, message.content, calls), serialize_unknown=True)


def _model_name(model: Any) -> str:
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else type(model).__name__


def _restore_reply(data: dict[str, Any]) -> AIMessage:
    return AIMessage(
        **{name: value for name, value in data.items() if name in AIMessage.model_fields and name != "type"}
    )


def _record_result(value: Any) -> dict[str, Any]:
    if is_plain(value):
        return {"value": value}
    try:
        kind, data = _serializer.dumps_typed(value)
        is_same = bool(_serializer.loads_typed((kind, data)) == value)
    except Exception:
        is_same, kind, data = False, "", b""
    if not is_same:
        return {"value": value}  # This is not JSON: the journal notes that it cannot be recorded.
    return {"kind": kind, "data": base64.b64encode(data).decode()}


def _restore_result(recorded: dict[str, Any]) -> Any:
    if "error" in recorded:
        raise _restore_error(recorded["error"])
    if "data" in recorded:
        return _serializer.loads_typed((recorded["kind"], base64.b64decode(recorded["data"])))
    return recorded["value"]


def _record_error(error: Exception) -> dict[str, Any]:
    kind = type(error)
    return {
        "module": kind.__module__,
        "class": kind.__qualname__,
        "args": [value if is_plain(value) else str(value) for value in error.args],
        "fields": {name: value for name, value in vars(error).items() if is_plain(value)},
        "text": str(error),
    }


def _restore_error(recorded: dict[str, Any]) -> Exception:
    """Return an exception of the same class and with the same message, so that the same handlers catch it."""
    with suppress(Exception):  # The class may be local, or need more than its arguments.
        kind: Any = importlib.import_module(recorded["module"])
        for name in recorded["class"].split("."):
            kind = getattr(kind, name)
        error = kind.__new__(kind, *recorded["args"])
        error.args = tuple(recorded["args"])
        error.__dict__.update(recorded["fields"])
        if isinstance(error, Exception) and str(error) == recorded["text"]:
            return error
    return type(recorded["class"].rpartition(".")[2], (RecordedError,), {})(recorded["text"])


class RecordedError(Exception):
    """Stand-in for an exception that was recorded and cannot be made again."""
