"""Recorder of a graph's run, and LangChain's callbacks that it listens to: text, reasoning, tools, usage.

LangChain calls a callback at once, in the task or thread of the model or tool, and a callback may raise: so a truncated
reply ends the run before its tools are called, and a tool is not called with arguments that cannot be parsed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.tools import BaseTool
from langgraph.config import get_stream_writer
from langgraph.constants import TAG_NOSTREAM
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from pydantic_core import PydanticCustomError, ValidationError

from turnwire.agents.agent_paths import Path
from turnwire.agents.context_changes import is_plain
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.langgraph.calls import GraphToolCalls, ToolRun
from turnwire.agents.langgraph.continuation import (
    CallNumbers,
    dump_error,
    dump_request,
    dump_result,
    load_error,
    load_reply,
    load_result,
)
from turnwire.agents.langgraph.messages import (
    check_complete,
    is_transfer,
    read_pieces,
    read_text,
    reply_of,
    tool_message,
    usage_event,
)
from turnwire.agents.langgraph.options import add_to_call
from turnwire.agents.langgraph.tasks import GraphTasks, Metadata
from turnwire.agents.langgraph.tools import OfferedTools
from turnwire.agents.run_recorder import RunRecorder
from turnwire.core.errors import TurnEndedError
from turnwire.core.journal.turn_journal import (
    APPROVAL,
    JournaledCall,
    RecordedCall,
    ToolDeniedError,
    fingerprint,
    is_inside,
)
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import CustomEvent, ReasoningEvent, TokenEvent, ToolCallEvent, Usage
from turnwire.tools.invocation import loggable, plain, set_running_call, tool_error_text

T = TypeVar("T")
Wait = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
_outer_call: ContextVar[str] = ContextVar("turnwire_langgraph_call", default="")
"""The place of the tool call that the current code belongs to."""


class GraphReply:
    """A message that a model or a node writes. `is_hidden` is True if its text is not for people."""

    def __init__(self, path: Path, *, is_hidden: bool = False) -> None:
        self.path = path
        self.is_hidden = is_hidden
        self.is_streaming = self.has_text = False
        self.has_ended = self.is_refused = False
        self.arguments: dict[Any, tuple[list[str], list[str]]] = {}


class GraphRun(RunRecorder):
    """Recorder of a turn's run of a graph or another runnable, with those of its sub-agents.

    A call in the journal is found by its task, and within the task by its number, or by its request if the task makes
    several calls at a time. A tool call is found by its id. Failures of models and tools are recorded too, so that the
    code that handled them handles them again. `failures` are the exceptions of tools, with the tool's name, and models.
    """

    def __init__(self, queue: EventQueue, turn_id: str, tasks: GraphTasks, offered: OfferedTools) -> None:
        super().__init__(queue)
        self.tasks = tasks
        self.calls = GraphToolCalls()
        self.model = ""
        self.failures: list[tuple[BaseException, str | None]] = []
        self.authors: dict[str, Path] = {}
        self.replies: dict[UUID, GraphReply] = {}
        self.journaled: dict[UUID, JournaledCall] = {}
        self.tools: dict[UUID, ToolRun] = {}
        self.interrupt_places: dict[str, str] = {}
        """The places of the tools and nodes that have called `interrupt()` and not been resumed, by its id."""
        self._turn_id = turn_id
        self._offered = offered
        self._numbers = CallNumbers(queue.journal)
        self._unnamed: Counter[str] = Counter()
        self._waits: set[Future[Any]] = set()
        self._is_closed = False

    def place_of(self, metadata: Metadata) -> str:
        return "/".join(filter(None, (_outer_call.get(), self.tasks.name_of(metadata))))

    # Threads and event loops

    async def flush(self) -> None:
        """Wait until everything that was written is in the log.

        Raises CancelledError when the turn has ended, since LangChain shields its callbacks from being cancelled.
        """
        await self.queue.flush()
        if self.queue.is_closed:
            raise asyncio.CancelledError

    async def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the turn's loop, from any loop."""
        return await (work if self.queue.is_on_loop else asyncio.wrap_future(self._submit(work)))

    async def in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Block this thread until a coroutine on the turn's loop has ended: for `run_blocking`.

        Raises TurnEndedError to stop the thread, which cannot be cancelled.
        """
        try:
            return self._submit(work).result()
        except CancelledError:
            raise TurnEndedError(self._turn_id) from None

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._is_closed:
            work.close()
            raise TurnEndedError(self._turn_id)
        future = asyncio.run_coroutine_threadsafe(work, self.queue.loop)
        self._waits.add(future)
        future.add_done_callback(self._waits.discard)
        return future

    def close(self) -> None:
        """Stop the threads that wait for the turn's loop."""
        self._is_closed = True
        self.tasks.close()
        for future in tuple(self._waits):
            future.cancel()

    # Text

    def write_message(self, message: BaseMessage, reply: GraphReply) -> None:
        """Write the text and reasoning of a message, or of a piece of it."""
        for kind, text in read_pieces(message):
            if kind == "reasoning":
                self.queue.put(ReasoningEvent(text, agent_path=reply.path))
            elif reply.is_hidden:
                continue
            elif reply.path:
                self.queue.put(TokenEvent(text, agent_path=reply.path))
            else:
                self.begins_reply = not reply.has_text
                self.write(text)
                reply.has_text = True

    async def write_output(self, message: BaseMessage, metadata: Metadata) -> None:
        """Write what no callback has reported: a node's own text, and results of tools that never ran."""
        if isinstance(message, AIMessageChunk) or is_transfer(message):
            return  # Nearly every message is a chunk, whose text a callback has reported.
        if isinstance(message, ToolMessage):
            for event in self.calls.result_of(message, self.tasks.path_in(metadata)):
                self.queue.put(event)
        elif isinstance(message, AIMessage) and message.id not in self.authors:
            path = self.authors[message.id or ""] = self.tasks.text_path(metadata)
            if any(read_pieces(message)):
                await self._write_text(message, path, metadata)

    async def _write_text(self, message: AIMessage, path: Path, metadata: Metadata) -> None:
        call: JournaledCall | None = None
        if self.queue.journal is not None:
            place = self._numbers.next(f"{self.place_of(metadata)}/text", "")
            await self.flush()
            names = (metadata.get("langgraph_node") or "", "text")
            call = await self.queue.journal.begin_model(place, names=names, agent_path=path)
        with call or nullcontext():
            if call is not None and call.is_shown:
                self.note_reply(message, path)
                return
            self.write_message(message, GraphReply(path))
            await self._end_call(call, {"text": message.id or ""})

    def note_reply(self, message: BaseMessage, path: Path) -> None:
        """Note a reply whose text is in the log already."""
        self.authors[message.id or ""] = path
        if not path:
            self.note_text(read_text(message))

    # Nodes

    def find_output(self, node: str, metadata: Metadata) -> dict[str, Any] | None:
        """Return the recorded output of a node that has ended, and note the calls that are not made again."""
        journal, place = self.queue.journal, self.place_of(metadata)
        step = journal.find_step(place) if journal is not None else None
        if journal is None or step is None or step.entry.names != (node,):
            return None
        for key, call in journal.recording.calls.items():
            if is_inside(key, place) and call.is_finished:
                self._note_skipped(call)
        return json.loads(step.result)

    def _note_skipped(self, call: RecordedCall) -> None:
        path, result = call.entry.agent_path, json.loads(call.result)
        if call.entry.names == (APPROVAL,):
            decision = msgspec.convert(result, Decision)
            self.calls.decided[decision.call_id] = decision
        elif call.entry.kind == "tool":
            self.calls.end(call.entry.call_id)
        elif call.entry.kind == "model" and "text" in result:
            self.authors[result["text"]] = path
            self.has_text |= not path
        elif call.entry.kind == "model" and "message" in result:
            message = load_reply(result["message"])
            self.authors[message.id or ""] = path
            if not result["hidden"]:
                self.note_reply(message, path)
            self.calls.invalid.update(result["invalid"])
            self.calls.read_requests(message, ())

    async def end_node(self, node: str, metadata: Metadata, since: int, output: Any) -> None:
        """Record the output of a node, when everything that the node has written is in the log."""
        recorded = dump_result(output)
        if self.queue.journal is not None and ("value" not in recorded or is_plain(output)):
            # What the node has sent to the graph's stream comes before this mark; the stream's reader sets it.
            mark = asyncio.Event()
            get_stream_writer()(mark)
            await mark.wait()
            await self.flush()
            self.queue.journal.finish_step(self.place_of(metadata), node, since, recorded)

    def note_interrupt(self, error: BaseException, place: str) -> None:
        """Note the place of a call of `interrupt()`, the innermost first."""
        if isinstance(error, GraphInterrupt):
            for interrupt in error.args[0]:
                self.interrupt_places.setdefault(interrupt.id, place)

    # Models

    async def begin_reply(
        self, run_id: UUID, model: BaseChatModel, metadata: Metadata, messages: Sequence[BaseMessage]
    ) -> JournaledCall | None:
        """Begin a model call, when everything before it is in the log; or return the one that has begun already."""
        if self.queue.journal is None or run_id in self.journaled:
            return self.journaled.get(run_id)
        digest = fingerprint(dump_request(messages))
        place = self._numbers.next(self.place_of(metadata), digest)
        await self.flush()
        call = self.journaled[run_id] = await self.queue.journal.begin_model(
            place,
            names=(metadata.get("langgraph_node") or "", _model_name(model)),
            fingerprint=digest,
            agent_path=self.tasks.text_path(metadata),
        )
        return call

    def read_end(self, run_id: UUID, message: AIMessage | None) -> None:
        """Read the end of a reply, once: LangChain calls its handlers in any order. Raises ModelError."""
        reply, call = self.replies.get(run_id), self.journaled.get(run_id)
        if reply is None or message is None or reply.has_ended:
            return
        reply.has_ended = reply.is_refused = True
        if message.id:
            self.authors[message.id] = reply.path
        if call is not None and call.is_shown:
            if not reply.is_hidden:
                self.note_reply(message, reply.path)
        elif not reply.is_streaming:
            self.write_message(message, reply)
        if (call is None or call.is_live) and (usage := usage_event(message, reply.path)):
            self.queue.put(usage)
        check_complete(message)
        self.calls.read_requests(message, reply.arguments.values())
        reply.is_refused = False

    async def end_reply(self, run_id: UUID, result: dict[str, Any], usage: Usage | None = None) -> None:
        """Record a live reply when its text is in the log; for a recorded reply, note that its text is shown again."""
        await self._end_call(self.journaled.pop(run_id, None), result, usage)

    async def _end_call(self, call: JournaledCall | None, result: Any, usage: Usage | None = None) -> None:
        if call is None or call.is_live:
            await self.finish_model(call, lambda: result, usage)
        elif not call.is_shown:
            await self.flush()
            call.show()

    def request_options(
        self, model: BaseChatModel, metadata: Metadata, arguments: dict[str, Any], messages: Sequence[Any]
    ) -> dict[str, Any]:
        """Return the arguments of a model call, with the client's options if the graph's own agent makes it."""
        if _outer_call.get() or self.tasks.path_in(metadata):
            return arguments
        arguments = self._offered.add_to_request(model, arguments)
        if not self.options.names:
            return arguments
        has_called = bool(messages) and isinstance(messages[-1], ToolMessage)
        return add_to_call(self.options, model, arguments, has_called=has_called)

    def recorded_reply(self, call: JournaledCall) -> ChatResult:
        """Return the recorded reply, or raise its error."""
        self.calls.invalid.update(call.result.get("invalid", ()))
        if error := call.result.get("error"):
            raise load_error(error)
        message = load_reply(call.result["message"])
        return ChatResult(generations=[ChatGeneration(message=message, generation_info=call.result.get("info"))])

    # Tools

    def find_tool(self, call_id: str | None) -> ToolRun | None:
        """Return a running tool call by its id in the log."""
        return next((call for call in tuple(self.tools.values()) if call.call_id == call_id), None)

    async def call_tool(
        self, tool: BaseTool, call: ToolRun, metadata: Metadata, run: Callable[[], Awaitable[Any]], wait: Wait
    ) -> Any:
        """Call a tool once: after a crash its recorded result is returned, or its recorded error raised.

        `wait` is `on_loop` or `in_thread`.
        """
        place = self.place_of(metadata)
        try:
            begun = await wait(self._begin_tool(tool, call, place))
        except ToolDeniedError as denied:
            return ToolMessage(str(denied), tool_call_id=call.requested_id, name=tool.name, status="error")
        if begun is None:
            return await run()
        with begun:
            if not begun.is_live:
                return load_result(begun.result)
            token = _outer_call.set(f"{place}:{call.call_id}")
            try:
                result = await run()
            except GraphBubbleUp as error:
                self.note_interrupt(error, f"{place}:{call.call_id}")
                await wait(_call(begun.wait))
                raise
            except Exception as error:
                await wait(_call(begun.finish, {"error": dump_error(error)}))
                raise
            finally:
                _outer_call.reset(token)
            await wait(_call(begun.finish, dump_result(result)))
        return result

    async def _begin_tool(self, tool: BaseTool, call: ToolRun, place: str) -> JournaledCall | None:
        await self.flush()
        if self.queue.journal is None:
            return None
        return await self.queue.journal.begin_tool(place, call.call_id, tool.name, call.args, agent_path=call.path)

    def name_call(self, tool: str, metadata: Metadata, run_id: UUID) -> str:
        """Return an id for a tool call that no model has requested: the same when the turn is continued."""
        if self.queue.journal is None:
            return str(run_id)
        place = f"{self.queue.journal.recording.segment}/{self.place_of(metadata)}/{tool}"
        self._unnamed[place] += 1
        return f"{tool}-{fingerprint([place, self._unnamed[place]])[:16]}"


async def _call(function: Callable[..., None], *args: Any) -> None:
    function(*args)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread, with `in_thread` for all that it waits for: it blocks instead of being suspended."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the coroutine has not blocked")


def _model_name(model: Any) -> str:
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return name if isinstance(name, str) else type(model).__name__


class GraphListener(BaseCallbackHandler):
    """Callback handler of a run. With `records_text` it also writes the text of the models."""

    run_inline = True
    raise_error = True

    def __init__(self, run: GraphRun, *, records_text: bool) -> None:
        self._run = run
        self._records_text = records_text

    # Nodes

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
        self._run.tasks.begin(run_id, parent_run_id, metadata or {})

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **rest: Any) -> None:
        self._run.tasks.end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._run.tasks.end(run_id)

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
        path = self._run.tasks.text_path(metadata or {})
        # A reply of `with_structured_output` is for the code that called the model, not for people.
        is_for_code = TAG_NOSTREAM in (tags or ()) or "ls_structured_output_format" in rest.get("options", {})
        # Nor is the JSON of a sub-agent with a response format.
        is_for_code = is_for_code or (bool(path) and "response_format" in rest.get("invocation_params", {}))
        self._run.replies[run_id] = GraphReply(path, is_hidden=is_for_code or not self._records_text)
        self._run.model = str((metadata or {}).get("ls_model_name") or self._run.model)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **rest: Any) -> None:
        reply = self._run.replies.get(run_id)
        if reply is None or not isinstance(chunk, ChatGenerationChunk):
            return
        reply.is_streaming = True
        self._run.write_message(chunk.message, reply)
        if isinstance(chunk.message, AIMessageChunk):
            for piece in chunk.message.tool_call_chunks:
                ids, texts = reply.arguments.setdefault(piece["index"], ([], []))
                ids.append(piece["id"] or "")
                texts.append(piece["args"] or "")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **rest: Any) -> None:
        self._run.read_end(run_id, reply_of(response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._run.failures.append((error, None))

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
        run, metadata = self._run, metadata or {}
        tool = rest.get("name") or (serialized or {}).get("name") or "tool"
        requested_id = rest.get("tool_call_id") or run.name_call(tool, metadata, run_id)
        run.tasks.begin_call(metadata, requested_id)
        call_id, is_new = run.calls.begin(requested_id)
        args = plain(run.calls.arguments(requested_id, inputs if inputs is not None else {"input": input_str}))
        call = run.tools[run_id] = ToolRun(requested_id, call_id, tool, args, run.tasks.path_in(metadata))
        if is_new:
            shown = run.calls.shown_arguments(requested_id, args)
            run.queue.put(ToolCallEvent(call_id, tool, shown, agent_path=call.path))
        set_running_call(call_id)
        if requested_id in run.calls.invalid:
            del run.tools[run_id]
            error = PydanticCustomError("json_invalid", "they are not a JSON object")
            raise ValidationError.from_exception_data(tool, [{"type": error, "loc": ("arguments",), "input": None}])

    def on_tool_end(self, output: Any, *, run_id: UUID, **rest: Any) -> None:
        if call := self._run.tools.pop(run_id, None):
            self._run.calls.end(call.call_id)
            message = tool_message(output, call.requested_id)
            failed = message is not None and message.status == "error"
            self._run.queue.put(call.result(not failed, loggable(output if message is None else message.content)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        run, call = self._run, self._run.tools.pop(run_id, None)
        # Interrupts and cancellation leave a tool by exceptions too; they are no failures.
        if call is not None and isinstance(error, GraphBubbleUp):
            run.calls.pause(call.requested_id, call.call_id)
        if call is None or isinstance(error, GraphBubbleUp | TurnEndedError) or not isinstance(error, Exception):
            return
        run.failures.append((error, call.tool))
        if isinstance(error, ValidationError):
            return  # The graph writes the error to a message, which is the result.
        run.calls.end(call.call_id)
        run.queue.put(call.result(False, tool_error_text(call.tool, error)))

    def on_custom_event(
        self, name: str, data: Any, *, run_id: UUID, metadata: dict[str, Any] | None = None, **rest: Any
    ) -> None:
        path = self._run.tasks.path_in(metadata or {})
        self._run.queue.put(CustomEvent(name=name, data=plain(data), agent_path=path))


class ModelRecorder(AsyncCallbackHandler):
    """Callback handler that records the end of model calls, unless the reply is refused."""

    run_inline = True
    raise_error = True

    def __init__(self, run: GraphRun) -> None:
        self._run = run

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **rest: Any) -> None:
        run, message = self._run, reply_of(response)
        run.read_end(run_id, message)
        reply = run.replies.pop(run_id, None)
        if reply is not None and reply.is_refused:
            return
        result: dict[str, Any] = {}
        if message is not None:
            result = {
                "message": message.model_dump(mode="json", warnings=False, fallback=str),
                "info": plain(response.generations[0][0].generation_info),
                "hidden": reply is not None and reply.is_hidden,
                "invalid": [call["id"] for call in message.tool_calls if call["id"] in run.calls.invalid],
            }
        spent = message.usage_metadata if message is not None else None
        usage = Usage(spent["input_tokens"], spent["output_tokens"]) if spent else None
        await run.on_loop(run.end_reply(run_id, result, usage))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **rest: Any) -> None:
        self._run.replies.pop(run_id, None)
        if isinstance(error, Exception):
            await self._run.on_loop(self._run.end_reply(run_id, {"error": dump_error(error)}))
        elif call := self._run.journaled.pop(run_id, None):
            call.__exit__(None, None, None)  # The call was stopped.
