"""What LangChain's callbacks tell of a run: tokens, thoughts, tools, cost, and answers that are not whole.

A callback comes at the moment something happens, in the task or thread it happens in, and may stop it: so half an
answer ends the run before its tools are called, and a tool is not called with arguments that cannot be read.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp
from pydantic_core import PydanticCustomError, ValidationError

from turnwire.agents.langgraph.calls import Calls
from turnwire.agents.langgraph.messages import Heard, Path, answer_of, check_whole, tool_message, usage_event, words
from turnwire.agents.langgraph.telling import Teller
from turnwire.core.events import (
    CustomEvent,
    ReasoningEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.tools.running import loggable, plain, set_running_call, why_it_failed


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

    `calls` knows its tool calls; `failed_tools` and `model_error` say whose an exception is.
    """

    run_inline = True
    raise_error = True

    def __init__(self, teller: Teller, *, tells_text: bool, answer_nodes: Collection[str] | None = None) -> None:
        self.model = ""
        self.model_error: BaseException | None = None
        self.failed_tools: list[tuple[Exception, str]] = []
        self.calls = Calls()
        self._teller = teller
        self._tells_text = tells_text
        self._answer_nodes = answer_nodes
        self._asking: dict[UUID, _Asking] = {}
        self._calling: dict[UUID, _Calling] = {}
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
        self.calls.read_wishes(message, asking.arguments.values())

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._asking.pop(run_id, None)
        self.model_error = error

    def _tell_words(self, message: BaseMessage, asking: _Asking) -> None:
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
        calling = self._calling[run_id] = _Calling(wished, call_id, tool, self._path(metadata))
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
