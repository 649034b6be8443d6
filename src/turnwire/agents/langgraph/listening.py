"""What LangChain's callbacks tell of a run: tokens, thoughts, tools, cost, and answers that are not whole.

A callback comes at the moment something happens, in the task or thread it happens in, and may stop it: so half an
answer ends the run before its tools are called, and a tool is not called with arguments that cannot be read.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from msgspec import Struct
from pydantic_core import PydanticCustomError, ValidationError

from turnwire.agents.langgraph.messages import Heard, Path, answer_of, check_whole, tool_message, usage_event, words
from turnwire.agents.langgraph.telling import Teller
from turnwire.core.approvals import Decision
from turnwire.core.events import (
    CustomEvent,
    Event,
    ReasoningEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.tools.arguments import read_arguments
from turnwire.tools.running import loggable, plain, set_running_call, why_it_failed


class Past(Struct, frozen=True):
    """What was told before a wait: how often each call was tried, and which ones began and have not ended."""

    tries: dict[str, int]
    paused: dict[str, str]


class _Asking:
    """A model that is answering."""

    def __init__(self, path: Path, tells_text: bool) -> None:
        self.path = path
        self.tells_text = tells_text
        self.streams = False
        self.arguments: dict[Any, tuple[list[str], list[str]]] = {}


class _Calling:
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


class Listener(BaseCallbackHandler):
    """Tells what it hears; with `tells_text` also the words of the models.

    `failed_tools` and `model_error` say whose an exception is.
    """

    run_inline = True
    raise_error = True

    def __init__(self, teller: Teller, *, tells_text: bool, answer_nodes: Collection[str] | None = None) -> None:
        self.model = ""
        self.model_error: BaseException | None = None
        self.failed_tools: list[tuple[Exception, str]] = []
        self._teller = teller
        self._tells_text = tells_text
        self._answer_nodes = answer_nodes
        self._asking: dict[UUID, _Asking] = {}
        self._calling: dict[UUID, _Calling] = {}
        self._wishes: dict[str, tuple[str, dict[str, Any]]] = {}
        self._decided: dict[str, dict[str, Any]] = {}
        self._paused: dict[str, str] = {}
        self._unreadable: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._told_results: set[str] = set()
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
            yield from self._result_of(message, path)
        elif isinstance(message, AIMessage) and not isinstance(message, AIMessageChunk):
            yield from () if message.id in self._authors else words(message, self._text_path(metadata, path))

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
        self._asking[run_id] = _Asking(path, self._tells_text and TAG_NOSTREAM not in (tags or ()))
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
        self._read_wishes(message, asking)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._asking.pop(run_id, None)
        self.model_error = error

    def _tell_words(self, message: BaseMessage, asking: _Asking) -> None:
        for heard in words(message, asking.path):
            if asking.tells_text or isinstance(heard, ReasoningEvent):
                self._teller.tell(heard)

    def _read_wishes(self, message: AIMessage, asking: _Asking) -> None:
        """LangChain mends arguments that break off, and drops calls whose arguments are no object.

        Neither happens here: such a call is made without arguments, and then refused with what is wrong about it.
        """
        for ids, texts in asking.arguments.values():
            if read_arguments("".join(texts)) is None:
                self._unreadable.add("".join(ids))
        for call in message.invalid_tool_calls:
            self._unreadable.add(call["id"] or "")
            message.tool_calls.append({"name": call["name"] or "", "args": {}, "id": call["id"], "type": "tool_call"})
        message.invalid_tool_calls = []
        for call in message.tool_calls:
            if call["id"] in self._unreadable:
                call["args"] = {}
            self._wishes[call["id"] or ""] = call["name"], call["args"]

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
        was_told = wished in self._paused
        if not was_told:
            self._tries[wished] += 1
        # One that is tried again is another call: the first has its result, and an id stands for one pair.
        again = wished if self._tries[wished] == 1 else f"{wished}-{self._tries[wished]}"
        call_id = self._paused.pop(wished, again)
        calling = self._calling[run_id] = _Calling(wished, call_id, tool, self._path(metadata))
        if not was_told:
            args = self._arguments(wished, inputs if inputs is not None else {"input": input_str})
            self._teller.tell(ToolCallEvent(call_id, tool, plain(args), agent_path=calling.path))
        self._teller.wait_in_thread()
        set_running_call(call_id)
        if wished in self._unreadable:
            del self._calling[run_id]
            wrong = PydanticCustomError("json_invalid", "they are not a JSON object")
            raise ValidationError.from_exception_data(tool, [{"type": wrong, "loc": ("arguments",), "input": None}])

    def on_tool_end(self, output: Any, *, run_id: UUID, **rest: Any) -> None:
        if calling := self._calling.pop(run_id, None):
            self._told_results.add(calling.call_id)
            message = tool_message(output, calling.call_id)
            failed = message is not None and message.status == "error"
            self._teller.tell(calling.ended(not failed, loggable(output if message is None else message.content)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        calling = self._calling.pop(run_id, None)
        # A graph that stops to ask a person does so by an exception, and one that is cancelled too.
        if calling is not None and isinstance(error, GraphBubbleUp):
            self._paused[calling.wished] = calling.call_id
        if calling is None or isinstance(error, GraphBubbleUp) or not isinstance(error, Exception):
            return
        self.failed_tools.append((error, calling.tool))
        if isinstance(error, ValidationError):
            return  # Its graph says what is wrong, in a message.
        self._told_results.add(calling.call_id)
        self._teller.tell(calling.ended(False, why_it_failed(calling.tool, error)))

    def _result_of(self, message: ToolMessage, path: Path) -> Iterator[Event]:
        call_id, tool = message.tool_call_id, message.name or "tool"
        if call_id in self._told_results:
            return
        if call_id not in self._tries:
            args = self._decided[call_id] if call_id in self._decided else self._arguments(call_id, {})
            yield ToolCallEvent(call_id, tool, plain(args), agent_path=path)
            self._tries[call_id] += 1
        self._told_results.add(call_id)
        yield ToolResultEvent(call_id, tool, message.status != "error", loggable(message.content), agent_path=path)

    def _arguments(self, wished: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the model wrote. Of a call that was decided about, what it is made with: perhaps it is not the same."""
        if decided := self._decided.get(wished):
            # LangChain adds what it injects.
            return decided if decided.items() <= inputs.items() else inputs
        return self._wishes[wished][1] if wished in self._wishes else inputs

    # Over a wait

    def find_wish(self, tool: str, args: dict[str, Any], but: Collection[str]) -> str | None:
        """The id of such a call that the model has wished for and that is not made yet."""
        wished = (call_id for call_id, wish in self._wishes.items() if wish == (tool, args))
        return next((call_id for call_id in wished if call_id not in but and not self._tries[call_id]), None)

    def past(self, asked: Collection[str]) -> Past:
        """What is told again once it is decided does not count."""
        paused = {**self._paused, **{calling.wished: calling.call_id for calling in self._calling.values()}}
        tries = {call_id: count for call_id, count in self._tries.items() if count and call_id not in asked}
        return Past(tries, {wished: call_id for wished, call_id in paused.items() if wished not in asked})

    def take_up(self, past: Past, decisions: Sequence[Decision], messages: Sequence[BaseMessage]) -> None:
        """The graph goes on; nothing of this is told twice."""
        self._tries.update(past.tries)
        self._paused.update(past.paused)
        self._decided = {decision.call_id: decision.args for decision in decisions}
        self._authors.update({message.id: () for message in messages if message.id})

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
