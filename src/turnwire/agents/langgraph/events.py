"""What LangChain's callbacks tell of a run: tokens, thoughts, tools, cost, and answers that are not whole.

A callback comes at the moment something happens, in the task or thread it happens in, and may stop it: so half an
answer ends the run before its tools are called, and a tool is not called with arguments that cannot be read.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from msgspec import Struct
from pydantic_core import PydanticCustomError, ValidationError

from turnwire.agents.langgraph.messages import Heard, Path, answer_of, check_whole, tool_message, usage_event, words
from turnwire.core.approvals import Decision
from turnwire.core.errors import TurnEndedError
from turnwire.core.events import CustomEvent, Event, ReasoningEvent, ToolCallEvent, ToolResultEvent
from turnwire.tools.declaration import read_arguments
from turnwire.tools.invocation import loggable, plain, set_running_call, why_it_failed

# The tool calls of a run: what the model wished for, what was made of it, and what was told, also before a wait.


class EarlierCalls(Struct, frozen=True):
    """What was told before a wait: how often each call was tried, and which began and have not ended."""

    tries: dict[str, int]
    paused: dict[str, str]


class GraphToolCalls:
    """A call is known by the id that the model gave it, and told under it; one that is tried again under its own.

    `unreadable` are those whose arguments are no object.
    """

    def __init__(self) -> None:
        self.unreadable: set[str] = set()
        self._wishes: dict[str, tuple[str, dict[str, Any]]] = {}
        self._tries: Counter[str] = Counter()
        self._told_results: set[str] = set()
        self._paused: dict[str, str] = {}
        self._decided: dict[str, dict[str, Any]] = {}

    def read_wishes(self, message: AIMessage, pieces: Iterable[tuple[list[str], list[str]]]) -> None:
        """LangChain mends arguments that break off, and drops calls whose arguments are no object.

        Neither happens here: such a call is made without arguments, and then refused with what is wrong about it.
        """
        for ids, texts in pieces:
            if read_arguments("".join(texts)) is None:
                self.unreadable.add("".join(ids))
        for call in message.invalid_tool_calls:
            self.unreadable.add(call["id"] or "")
            message.tool_calls.append({"name": call["name"] or "", "args": {}, "id": call["id"], "type": "tool_call"})
        message.invalid_tool_calls = []
        for call in message.tool_calls:
            if call["id"] in self.unreadable:
                call["args"] = {}
            self._wishes[call["id"] or ""] = call["name"], call["args"]

    def begin(self, wished: str) -> tuple[str, bool]:
        """The id that a call is told under, and whether it is new: not if it goes on after a wait."""
        if wished in self._paused:
            return self._paused.pop(wished), False
        # One that is tried again is another call: the first has its result, and an id stands for one pair.
        self._tries[wished] += 1
        return wished if self._tries[wished] == 1 else f"{wished}-{self._tries[wished]}", True

    def arguments(self, wished: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the model wrote. But of a call that was decided about, what it is made with: it must be the same."""
        return self._wishes[wished][1] if wished in self._wishes and wished not in self._decided else inputs

    def end(self, call_id: str) -> None:
        self._told_results.add(call_id)

    def pause(self, wished: str, call_id: str) -> None:
        """Somebody is asked in the middle of it."""
        self._paused[wished] = call_id

    def result_of(self, message: ToolMessage, path: Path) -> Iterator[Event]:
        """The result of a call that was answered without running a tool."""
        call_id, tool = message.tool_call_id, message.name or "tool"
        if call_id in self._told_results:
            return
        if call_id not in self._tries:
            self._tries[call_id] += 1
            args = self._decided[call_id] if call_id in self._decided else self.arguments(call_id, {})
            yield ToolCallEvent(call_id, tool, plain(args), agent_path=path)
        self.end(call_id)
        yield ToolResultEvent(call_id, tool, message.status != "error", loggable(message.content), agent_path=path)

    # Over a wait

    def find_wish(self, tool: str, args: dict[str, Any], but: Collection[str]) -> str | None:
        """The id of such a call that the model has wished for and that is not made yet."""
        wished = (call_id for call_id, wish in self._wishes.items() if wish == (tool, args))
        return next((call_id for call_id in wished if call_id not in but and call_id not in self._tries), None)

    def past(self, asked: Collection[str]) -> EarlierCalls:
        """But what somebody is asked about is told again, so that its arguments are compared."""
        tries = {wished: count for wished, count in self._tries.items() if wished not in asked}
        return EarlierCalls(tries, {wished: call_id for wished, call_id in self._paused.items() if wished not in asked})

    def take_up(self, past: EarlierCalls, decisions: Sequence[Decision]) -> None:
        """The run goes on; nothing of this is told twice."""
        self._tries.update(past.tries)
        self._paused.update(past.paused)
        self._decided = {decision.call_id: decision.args for decision in decisions}


# From a run to its turn: in order, from any thread, and before the tool that it is about.


Written = asyncio.Event | threading.Event
"""Set by the reader when it comes to it."""
_PATIENCE_SECONDS = 30


class EventRelay:
    """Calls `put` on the event loop that it was made on, until it is closed."""

    def __init__(self, turn_id: str, put: Callable[[Heard | Written], None]) -> None:
        self._turn_id = turn_id
        self._put = put
        self._waiting: set[threading.Event] = set()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def tell(self, heard: Heard | Written) -> None:
        if self._is_on_loop():
            self._put(heard)
        else:
            self._loop.call_soon_threadsafe(self._put, heard)

    def wait_in_thread(self) -> None:
        """Until all that was told is written. Does nothing on the event loop: there `wait` is for that.

        Raises TurnEndedError, which stops the tool: nobody can cancel a thread.
        """
        if self._is_on_loop():
            return
        written = threading.Event()
        self._waiting.add(written)
        if not self._is_closed:
            self.tell(written)
            written.wait(_PATIENCE_SECONDS)
        self._waiting.discard(written)
        if self._is_closed:
            raise TurnEndedError(self._turn_id)

    async def wait(self) -> None:
        """The same on the event loop, and only there."""
        if asyncio.get_running_loop() is self._loop:
            written = asyncio.Event()
            self.tell(written)
            await written.wait()

    def close(self) -> None:
        self._is_closed = True
        for written in tuple(self._waiting):
            written.set()

    def _is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread


class Pause(AsyncCallbackHandler):
    """Holds async tools back, as the listener does sync ones: a callback that listens to both cannot be async.

    It stands after the listener. Sync code calls it too, in a loop of its own, where it does nothing.
    """

    run_inline = True

    def __init__(self, teller: EventRelay) -> None:
        self._teller = teller

    async def on_tool_start(self, serialized: dict[str, Any], input_str: str, **rest: Any) -> None:
        await self._teller.wait()


class _ModelRun:
    """A model that is answering."""

    def __init__(self, path: Path, tells_text: bool) -> None:
        self.path = path
        self.tells_text = tells_text
        self.streams = False
        self.arguments: dict[Any, tuple[list[str], list[str]]] = {}


class _ToolRun:
    """A tool that is running."""

    def __init__(self, wished: str, call_id: str, tool: str, path: Path) -> None:
        self.wished = wished
        self.call_id = call_id
        self.tool = tool
        self.path = path
        self.began = time.perf_counter()

    def ended(self, success: bool, result: Any) -> ToolResultEvent:
        ms = round((time.perf_counter() - self.began) * 1000, 1)
        return ToolResultEvent(self.call_id, self.tool, success, result, ms, agent_path=self.path)


class GraphListener(BaseCallbackHandler):
    """Tells what it hears; with `tells_text` also the words of the models.

    `calls` knows its tool calls; `failed_tools` and `model_error` say whose an exception is.
    """

    run_inline = True
    raise_error = True

    def __init__(self, teller: EventRelay, *, tells_text: bool, answer_nodes: Collection[str] | None = None) -> None:
        self.model = ""
        self.model_error: BaseException | None = None
        self.failed_tools: list[tuple[Exception, str]] = []
        self.calls = GraphToolCalls()
        self._teller = teller
        self._tells_text = tells_text
        self._answer_nodes = answer_nodes
        self._asking: dict[UUID, _ModelRun] = {}
        self._calling: dict[UUID, _ToolRun] = {}
        self._authors: dict[str, Path] = {}
        self._names: dict[Path, str] = {}

    def path_of(self, space: tuple[str, ...]) -> Path:
        """The names of the subgraphs that a place in the graph is in; an agent of LangChain's has one of its own."""
        names = [part.partition(":")[0] for part in space]
        return tuple(self._names.get(space[: n + 1], name) for n, name in enumerate(names))

    def is_of_subgraph(self, message: BaseMessage) -> bool:
        return bool(self._authors.get(message.id or ""))

    def read_message(self, message: BaseMessage, metadata: Mapping[str, Any], space: Path) -> Iterator[Heard]:
        """What a node wrote and no callback has told: words of its own, or results of tools that never ran."""
        path = self.path_of(space)
        if isinstance(message, ToolMessage):
            yield from self.calls.result_of(message, path)
        elif isinstance(message, AIMessage) and not isinstance(message, AIMessageChunk):
            yield from () if message.id in self._authors else words(message, self._text_path(metadata, path))

    def pause(self) -> None:
        """The run has stopped to ask somebody; what still runs will have to be run again."""
        for calling in self._calling.values():
            self.calls.pause(calling.wished, calling.call_id)

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
        path = self._text_path(metadata or {}, self._path(metadata))
        self._asking[run_id] = _ModelRun(path, self._tells_text and TAG_NOSTREAM not in (tags or ()))
        self.model = str((metadata or {}).get("ls_model_name") or self.model)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **rest: Any) -> None:
        asking = self._asking.get(run_id)
        if asking is None or not isinstance(chunk, ChatGenerationChunk):
            return
        asking.streams = True
        self._tell_words(chunk.message, asking)
        if isinstance(chunk.message, AIMessageChunk):
            for piece in chunk.message.tool_call_chunks:
                ids, texts = asking.arguments.setdefault(piece["index"], ([], []))
                ids.append(piece["id"] or "")
                texts.append(piece["args"] or "")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **rest: Any) -> None:
        asking = self._asking.pop(run_id, None)
        message = answer_of(response)
        if asking is None or message is None:
            return
        if message.id:
            self._authors[message.id] = asking.path
        if not asking.streams:
            self._tell_words(message, asking)
        if usage := usage_event(message, asking.path):
            self._teller.tell(usage)
        check_whole(message)
        self.calls.read_wishes(message, asking.arguments.values())

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._asking.pop(run_id, None)
        self.model_error = error

    def _tell_words(self, message: BaseMessage, asking: _ModelRun) -> None:
        for heard in words(message, asking.path):
            if asking.tells_text or isinstance(heard, ReasoningEvent):
                self._teller.tell(heard)

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
        wished = rest.get("tool_call_id") or str(run_id)
        tool = rest.get("name") or (serialized or {}).get("name") or "tool"
        call_id, is_new = self.calls.begin(wished)
        calling = self._calling[run_id] = _ToolRun(wished, call_id, tool, self._path(metadata))
        if is_new:
            args = self.calls.arguments(wished, inputs if inputs is not None else {"input": input_str})
            self._teller.tell(ToolCallEvent(call_id, tool, plain(args), agent_path=calling.path))
        self._teller.wait_in_thread()
        set_running_call(call_id)
        if wished in self.calls.unreadable:
            del self._calling[run_id]
            wrong = PydanticCustomError("json_invalid", "they are not a JSON object")
            raise ValidationError.from_exception_data(tool, [{"type": wrong, "loc": ("arguments",), "input": None}])

    def on_tool_end(self, output: Any, *, run_id: UUID, **rest: Any) -> None:
        if calling := self._calling.pop(run_id, None):
            self.calls.end(calling.call_id)
            message = tool_message(output, calling.call_id)
            failed = message is not None and message.status == "error"
            self._teller.tell(calling.ended(not failed, loggable(output if message is None else message.content)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        calling = self._calling.pop(run_id, None)
        # A graph that stops to ask a person does so by an exception, and one that is cancelled too.
        if calling is not None and isinstance(error, GraphBubbleUp):
            self.calls.pause(calling.wished, calling.call_id)
        if calling is None or isinstance(error, GraphBubbleUp) or not isinstance(error, Exception):
            return
        self.failed_tools.append((error, calling.tool))
        if isinstance(error, ValidationError):
            return  # Its graph says what is wrong, in a message.
        self.calls.end(calling.call_id)
        self._teller.tell(calling.ended(False, why_it_failed(calling.tool, error)))

    # The rest

    def on_custom_event(
        self, name: str, data: Any, *, run_id: UUID, metadata: dict[str, Any] | None = None, **rest: Any
    ) -> None:
        self._teller.tell(CustomEvent(name=name, data=plain(data), agent_path=self._path(metadata)))

    def _path(self, metadata: Mapping[str, Any] | None) -> Path:
        metadata = metadata or {}
        place = metadata.get("langgraph_checkpoint_ns")
        if not place:
            return ()
        # The last part is the node itself; a `@task` stands in its caller's graph, one part further down.
        own, way = 1, metadata.get("langgraph_path", ())
        while len(way) == 4 and way[0] == "__pregel_push" and way[-1] is True:
            own, way = own + 1, way[1]
        space = tuple(str(place).split("|"))[:-own]
        if space and (name := metadata.get("lc_agent_name")):
            self._names.setdefault(space, name)
        return self.path_of(space)

    def _text_path(self, metadata: Mapping[str, Any], path: Path) -> Path:
        node = metadata.get("langgraph_node")
        is_aside = not path and self._answer_nodes is not None and node not in self._answer_nodes
        return (str(node),) if is_aside else path
