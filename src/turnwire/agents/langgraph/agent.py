"""The agent: one turn is one run of a graph or another runnable.

    from langchain.agents import create_agent

    agent = LangGraphAgent(create_agent(model, tools=[search], checkpointer=saver), config={"recursion_limit": 20})

A callback handler reports a graph's models and tools at once; messages of its nodes and `get_stream_writer()` come from
`astream`. For any other runnable the streamed output is the answer. Both run in a task that is cancelled with the turn.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, suppress
from itertools import count
from typing import Any, cast

import msgspec
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]
from pydantic_core import to_json

from turnwire.agents.agent_paths import Path
from turnwire.agents.event_queue import begun_by_older_version
from turnwire.agents.langgraph.approvals import ToResume, answer_interrupts
from turnwire.agents.langgraph.continuation import GraphRecorder, ModelRecorder, journal_nodes
from turnwire.agents.langgraph.errors import explain_failure
from turnwire.agents.langgraph.events import EventRelay, Flushed, GraphListener, ToolBarrier
from turnwire.agents.langgraph.memory import (
    TURN_ID,
    branch_from_parent,
    graph_messages,
    is_own,
    open_thread,
    whole_conversation,
)
from turnwire.agents.langgraph.messages import Output, fields_of, is_transfer, read_text, sdk_messages, stream_steered
from turnwire.agents.langgraph.nodes import find_answer_nodes, keeps_messages
from turnwire.agents.langgraph.options import POSSIBLE
from turnwire.agents.langgraph.runner import install_hooks, set_recorder
from turnwire.agents.langgraph.tools import OfferedTools, tool_nodes
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.emit import emit_state
from turnwire.core.log.events import CustomEvent, Event, EventBase
from turnwire.core.log.files import MODEL_FILE_TYPES
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.log.model_options import chosen_options
from turnwire.core.log.turns import Turn
from turnwire.tools.invocation import plain

_MODES = ["messages", "updates", "custom"]


class LangGraphAgent:
    """A Turnwire agent that runs a graph or another runnable; `config` is its `RunnableConfig`.

    The session id is the thread id of a graph's checkpointer, which then keeps the history; a graph without one gets
    the turn's history. `to_input` returns the input, by default `{"messages": [...]}` for a graph and the messages for
    any other runnable. `to_context` returns the context of a graph's run, for nodes and tools that need to know the
    caller; other options go to `astream`. `to_resume(decision, value)` makes each `interrupt()` of the graph's own an
    approval, and returns its result; without it, most are questions, and the reply is the result. `answer_nodes` are
    the nodes whose text is the answer, by default those that may write `messages`; the text of other nodes has the
    node's name as its `agent_path`.

    A turn whose worker was lost continues from its journal, unless `on_crash="close"`. `idempotent` names the tools
    that may run again if they break off. If the graph has changed meanwhile, the turn fails, or with
    `on_divergence="continue"` it goes on from its last finished tools. `takes_attachments` are the media types of files
    that the model can read. `takes_model_options` are the names of the model options that clients may send (see
    `core.log.model_options`), by default none: allow those that the models of the graph have. `instructions` and
    `response_format` cannot be given to a graph. `shared_state` names fields of the graph's state that clients see
    while they change (see `emit_state`), and that the client's own state sets when a turn begins.
    """

    def __init__(
        self,
        runnable: Runnable[Any, Any],
        *,
        config: RunnableConfig | None = None,
        to_input: Callable[[Turn], Any] | None = None,
        to_context: Callable[[Turn], Any] | None = None,
        to_resume: ToResume | None = None,
        answer_nodes: Collection[str] | None = None,
        on_crash: OnCrash = "resume",
        on_divergence: OnDivergence = "end",
        idempotent: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = False,
        shared_state: Collection[str] = (),
        **options: Any,
    ) -> None:
        self.takes_attachments = takes_attachments
        self.on_crash: OnCrash = on_crash
        self.on_divergence: OnDivergence = on_divergence
        install_hooks()
        self.takes_model_options = chosen_options(takes_model_options, POSSIBLE)
        self.output_schema = _declared_schema(runnable)
        self._idempotent = frozenset(idempotent)
        self._runnable = runnable
        self._config: RunnableConfig = config or {}
        self._to_input = to_input
        self._to_context = to_context
        self._to_resume = to_resume
        self._answer_nodes = find_answer_nodes(runnable) if answer_nodes is None else answer_nodes
        self._has_messages = keeps_messages(runnable)
        self._shared = tuple(shared_state)
        self._options = options

    @property
    def takes_client_tools(self) -> bool:
        """Whether a turn may bring tools that the client runs: a node must run tools."""
        return any(tool_nodes(self._runnable))

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(name for _, node in tool_nodes(self._runnable) for name in node.tools_by_name)

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    def find_problems(self) -> list[str]:
        """Return what is missing: without a context, nodes and tools that use it fail."""
        kind: Any = getattr(self._runnable, "context_schema", None)
        if kind is None or self._to_context is not None or "context" in self._options:
            return []
        name = getattr(kind, "__name__", str(kind))
        return [f"the graph expects a context of type {name}; give LangGraphAgent(graph, to_context=lambda turn: ...)"]

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        queue: asyncio.Queue[Output | Flushed | None] = asyncio.Queue()
        is_graph = isinstance(self._runnable, Pregel)
        if turn.progress and (self._to_input or current_journal() is None):
            raise begun_by_older_version()
        relay = EventRelay(turn.id, queue.put_nowait)
        listener = GraphListener(relay, records_text=is_graph, answer_nodes=self._answer_nodes)
        handlers: list[BaseCallbackHandler] = [listener, ToolBarrier(relay)]
        recorder: GraphRecorder | None = None
        if (journal := current_journal()) is not None:
            offered = OfferedTools(self._runnable, client_tools(turn.options))
            recorder = GraphRecorder(journal, turn.id, listener, relay, offered, turn.model_options)
            handlers.append(ModelRecorder(recorder))
            set_recorder(recorder)
        config = self._run_config(turn, *handlers)
        outputs: AsyncGenerator[Output | Flushed]
        if is_graph:
            outputs = self._run_graph(turn, config, listener, recorder)
        else:
            outputs = self._run_runnable(turn, config, recorder)
        running = asyncio.create_task(_forward(outputs, queue.put_nowait))
        running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (output := await queue.get()) is not None:
                if isinstance(output, Flushed):
                    output.set()
                else:
                    yield output
            if error := running.exception():
                failure = explain_failure(error, listener)
                if failure is error:
                    raise error
                raise failure from error
        finally:
            relay.close()
            listener.close()
            if recorder is not None:
                recorder.close()
            # This also closes the connection to the model's server.
            running.cancel()
            await asyncio.wait({running})

    def _run_config(self, turn: Turn, *handlers: BaseCallbackHandler) -> RunnableConfig:
        callbacks = self._config.get("callbacks") or []
        own = callbacks if isinstance(callbacks, list) else callbacks.handlers
        # Overrides the application's own thread id: a shared thread would show one user's messages to another.
        configurable = {**self._config.get("configurable", {}), "thread_id": turn.session_id}
        # The checkpointer keeps the metadata with each checkpoint.
        metadata = {**self._config.get("metadata", {}), TURN_ID: turn.id}
        return {**self._config, "callbacks": [*own, *handlers], "configurable": configurable, "metadata": metadata}

    async def _run_graph(
        self, turn: Turn, config: RunnableConfig, listener: GraphListener, recorder: GraphRecorder | None
    ) -> AsyncGenerator[Output | Flushed]:
        graph = await open_thread(self._runnable, turn, config)
        run_config = await branch_from_parent(graph, turn, config)
        messages = [] if self._to_input else await graph_messages(graph, turn, run_config)
        listener.has_answered = _has_text(turn)
        steps = sdk_messages(turn.progress, turn.id)
        input: Any = self._to_input(turn) if self._to_input else self._input_of(turn, [*messages, *steps])
        options = {**self._options, "context": self._to_context(turn)} if self._to_context else self._options
        if recorder is not None:
            graph = journal_nodes(recorder.extended(graph), recorder)
        if is_own(graph):
            options = {**options, "durability": "exit"}
        modes = [*_MODES, "values"] if self._shared else _MODES
        options = {**options, "stream_mode": modes, "subgraphs": True}
        last: object = None
        for number in count():
            paths: dict[str, Path] | None = None
            stream = stream_steered(graph, input, run_config, listener.flush, number, **options)
            async with aclosing(stream) as items:
                async for space, mode, item in items:
                    if mode == "messages":
                        events = listener.read_message(item[0], item[1], space)
                        if recorder is None or not events:
                            for event in events:
                                yield event
                        else:
                            async with aclosing(recorder.write(item[0].id or "", events, item[1])) as written:
                                async for event in written:
                                    yield event
                    elif mode == "values":
                        if not space:
                            self._share(item)
                    elif mode == "custom" and isinstance(item, Flushed):
                        yield item
                    elif mode == "custom":
                        yield _custom_event(item, listener.path_of(space))
                    elif "__interrupt__" in item:
                        paths = paths or {}
                        for interrupt in item["__interrupt__"]:
                            # A subgraph reports its own interrupts before the graph around it does.
                            paths.setdefault(interrupt.id, listener.path_of(space))
                    elif not space:
                        last = self._last_written(item, last)
            if paths is None:
                break
            await listener.flush()
            input, events = await answer_interrupts(graph, config, recorder, paths, self._to_resume)
            run_config = config
            for event in events:
                yield event
        # The answer has an agent path in the log, or is not in it: a value, or text of a subgraph or of another node.
        if isinstance(last, AIMessage) and listener.is_no_answer(last):
            last = read_text(last)
        elif isinstance(last, BaseMessage | None) or (isinstance(last, _Fields) and listener.has_answered):
            return
        if text := _text_of_value(last):
            if listener.has_answered:
                yield PARAGRAPH
            yield text

    def _input_of(self, turn: Turn, messages: list[Any]) -> dict[str, Any]:
        """Return the input of a graph: the messages, and the client's values of the fields that it shares."""
        sent = fields_of(turn.options.get("state"))
        return {**{name: sent[name] for name in self._shared if name in sent}, "messages": messages}

    def _share(self, values: Any) -> None:
        journal = current_journal()
        if journal is not None and journal.is_replaying:
            return  # The log has this state already, and the later ones.
        state = {name: plain(value) for name, value in fields_of(values).items() if name in self._shared}
        if state:
            emit_state(state)

    def _last_written(self, update: Any, last: object) -> object:
        """Return the graph's output so far: its last message, the structured response of an agent, or other fields."""
        for node, output in fields_of(update).items():
            state = fields_of(output)
            if "messages" not in state and isinstance(last, _Fields | None) and not self._has_messages:
                last = _Fields(state) if state else last
            elif self._answer_nodes is None or node in self._answer_nodes:
                if messages := state.get("messages"):
                    entries = cast("list[Any]", messages if isinstance(messages, list) else [messages])
                    last = next((entry for entry in reversed(entries) if not _is_transfer(entry)), last)
                value = state.get("structured_response")
                # Some models write the value as text, which is in the log already.
                if value is not None and not (isinstance(last, AIMessage) and read_text(last)):
                    last = value
        return last

    async def _run_runnable(
        self, turn: Turn, config: RunnableConfig, recorder: GraphRecorder | None
    ) -> AsyncGenerator[Output | Flushed]:
        steps = sdk_messages(turn.progress, turn.id)
        input = self._to_input(turn) if self._to_input else [*await whole_conversation(turn), *steps]
        stream = self._runnable.astream(input, config, **self._options)
        last: object = None
        has_text = False
        # The runnable writes all of its text again after a crash, and this much of it is in the log.
        shown = recorder.shown if recorder is not None and not turn.progress else 0
        if _has_text(turn):
            yield PARAGRAPH
        async with aclosing(cast("AsyncGenerator[Any]", stream)) as chunks:
            async for chunk in chunks:
                last = chunk
                if isinstance(chunk, str | BaseMessage) and (text := read_text(chunk)):
                    has_text = True
                    unseen, shown = text[shown:], max(0, shown - len(text))
                    if unseen:
                        yield unseen
        if not has_text and (text := _text_of_output(last)):
            yield text


def _declared_schema(runnable: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a graph's structured response; None if it has none."""
    if "structured_response" not in getattr(runnable, "channels", {}):
        return None
    with suppress(Exception):  # Other fields of the state may have no schema.
        properties = runnable.get_output_jsonschema()
        schema = _inlined(properties["properties"]["structured_response"], properties.get("$defs", {}))
        if schema.get("properties"):
            return schema
    return {"type": "object"}


def _inlined(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return {**definitions.get(name, schema), "$defs": definitions}


def _has_text(turn: Turn) -> bool:
    return any(step.role == "assistant" and step.content for step in turn.progress)


class _Fields(dict[str, Any]):
    """The last update of a graph that keeps no `messages`."""


def _text_of_value(value: Any) -> str:
    """Return a graph's output as text: the only field of an update, and JSON for everything but text."""
    if isinstance(value, _Fields) and len(value) == 1:
        (value,) = value.values()
    if isinstance(value, BaseMessage):
        return read_text(value)
    return value if isinstance(value, str) else to_json(value, serialize_unknown=True).decode()


def _is_transfer(entry: Any) -> bool:
    return isinstance(entry, BaseMessage) and is_transfer(entry)


async def _forward(outputs: AsyncGenerator[Output | Flushed], put: Callable[[Output | Flushed], None]) -> None:
    async with aclosing(outputs):
        async for output in outputs:
            put(output)


def _custom_event(item: Any, path: tuple[str, ...]) -> Event:
    if isinstance(item, EventBase):
        event = cast("Event", item)
        return msgspec.structs.replace(event, agent_path=path) if path and not event.agent_path else event
    kind = fields_of(item).get("type")
    return CustomEvent(name=kind if isinstance(kind, str) else "custom", data=plain(item), agent_path=path)


def _text_of_output(output: Any) -> str:
    """Return the answer of a runnable that outputs a whole state, as LangChain's older agents do."""
    fields = fields_of(output)
    message: Any = (fields.get("messages") or [fields.get("output")])[-1]
    return read_text(message) if isinstance(message, str | BaseMessage) else ""
