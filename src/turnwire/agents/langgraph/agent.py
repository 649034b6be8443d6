"""The agent: one turn is one run of a graph or another runnable.

    from langchain.agents import create_agent

    agent = LangGraphAgent(create_agent(model, tools=[search], checkpointer=saver), config={"recursion_limit": 20})

A callback handler reports a graph's models and tools at once; messages of its nodes and `get_stream_writer()` come from
`astream`. For any other runnable the streamed output is the answer. Both run in a task that is cancelled with the turn.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
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
from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.langgraph.approvals import ToResume, answer_interrupts
from turnwire.agents.langgraph.errors import explain_failure
from turnwire.agents.langgraph.events import GraphListener, GraphRun, ModelRecorder
from turnwire.agents.langgraph.memory import (
    TURN_ID,
    branch_from_parent,
    graph_messages,
    is_own,
    open_thread,
    whole_conversation,
)
from turnwire.agents.langgraph.messages import fields_of, is_transfer, read_text, sdk_messages, stream_steered
from turnwire.agents.langgraph.nodes import find_answer_nodes, keeps_messages
from turnwire.agents.langgraph.options import POSSIBLE
from turnwire.agents.langgraph.runner import install_hooks, journal_nodes
from turnwire.agents.langgraph.tasks import GraphTasks
from turnwire.agents.langgraph.tools import OfferedTools, tool_nodes
from turnwire.agents.sdk_agent import SdkAgent, split_options
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.emit import emit_state
from turnwire.core.log.events import CustomEvent, Event, EventBase
from turnwire.core.log.turns import Turn
from turnwire.tools.invocation import plain

_MODES = ["messages", "updates", "custom"]


class LangGraphAgent(SdkAgent):
    """A Turnwire agent that runs a graph or another runnable; `config` is its `RunnableConfig`.

    The session id is the thread id of a graph's checkpointer, which then keeps the history; a graph without one gets
    the turn's history. `to_input` returns the input, by default `{"messages": [...]}` for a graph and the messages for
    any other runnable. `to_context` returns the context of a graph's run, for nodes and tools that need to know the
    caller. `to_resume(decision, value)` makes each `interrupt()` of the graph's own an approval, and returns its
    result; without it, most are questions, and the reply is the result. `answer_nodes` are the nodes whose text is the
    answer, by default those that may write `messages`; the text of other nodes has the node's name as its
    `agent_path`. `shared_state` names fields of the graph's state that clients see while they change (see
    `emit_state`), and that the client's own state sets when a turn begins.

    Other options are those of `SdkAgent` and of `astream`. `on_divergence` has no effect beside `to_input`, which does
    not know what was done before. `takes_model_options` is by default none: allow those that the models of the graph
    have. `instructions` and `response_format` cannot be given to a graph.
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
        shared_state: Collection[str] = (),
        **options: Any,
    ) -> None:
        install_hooks()
        common, self._options = split_options({"takes_model_options": False, **options})
        super().__init__(POSSIBLE, **common)
        if to_input is not None:
            self.on_divergence = "end"
        # A turn may bring tools that the client runs if a node runs tools.
        self.takes_client_tools = any(tool_nodes(runnable))
        self.output_schema = _declared_schema(runnable)
        self._runnable = runnable
        self._config: RunnableConfig = config or {}
        self._to_input = to_input
        self._to_context = to_context
        self._to_resume = to_resume
        self._answer_nodes = find_answer_nodes(runnable) if answer_nodes is None else answer_nodes
        self._has_messages = keeps_messages(runnable)
        self._shared = tuple(shared_state)

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(name for _, node in tool_nodes(self._runnable) for name in node.tools_by_name)

    def find_problems(self) -> list[str]:
        """Return what is missing: without a context, nodes and tools that use it fail."""
        kind: Any = getattr(self._runnable, "context_schema", None)
        if kind is None or self._to_context is not None or "context" in self._options:
            return []
        name = getattr(kind, "__name__", str(kind))
        return [f"the graph expects a context of type {name}; give LangGraphAgent(graph, to_context=lambda turn: ...)"]

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        offered = OfferedTools(self._runnable, client_tools(turn.options))
        run = GraphRun(queue, turn.id, GraphTasks(queue.journal, self._answer_nodes), offered)
        self._prepare(run, turn)
        run.enter()
        listener = GraphListener(run, records_text=isinstance(self._runnable, Pregel))
        config = self._run_config(turn, listener, ModelRecorder(run))
        try:
            with explaining(lambda error: explain_failure(error, run)):
                if isinstance(self._runnable, Pregel):
                    await self._run_graph(turn, config, run, offered)
                else:
                    await self._run_runnable(turn, config, run)
        finally:
            run.close()

    def _run_config(self, turn: Turn, *handlers: BaseCallbackHandler) -> RunnableConfig:
        callbacks = self._config.get("callbacks") or []
        own = callbacks if isinstance(callbacks, list) else callbacks.handlers
        # Overrides the application's own thread id: a shared thread would show one user's messages to another.
        configurable = {**self._config.get("configurable", {}), "thread_id": turn.session_id}
        # The checkpointer keeps the metadata with each checkpoint.
        metadata = {**self._config.get("metadata", {}), TURN_ID: turn.id}
        return {**self._config, "callbacks": [*own, *handlers], "configurable": configurable, "metadata": metadata}

    async def _run_graph(self, turn: Turn, config: RunnableConfig, run: GraphRun, offered: OfferedTools) -> None:
        graph = await open_thread(self._runnable, turn, config)
        run_config = await branch_from_parent(graph, turn, config)
        messages = [] if self._to_input else await graph_messages(graph, turn, run_config)
        steps = sdk_messages(turn.progress, turn.id)
        input: Any = self._to_input(turn) if self._to_input else self._input_of(turn, [*messages, *steps])
        graph = journal_nodes(offered.add_to_graph(graph), run)
        modes = [*_MODES, "values"] if self._shared else _MODES
        options = {**self._options, "stream_mode": modes, "subgraphs": True}
        if self._to_context:
            options["context"] = self._to_context(turn)
        if is_own(graph):
            options["durability"] = "exit"
        last: object = None
        for number in count():
            paths: dict[str, Path] | None = None
            stream = stream_steered(graph, input, run_config, run.flush, number, **options)
            async with aclosing(stream) as items:
                async for space, mode, item in items:
                    if mode == "messages":
                        await run.write_output(*item)
                    elif mode == "values":
                        if not space:
                            self._share(item)
                    elif mode == "custom" and isinstance(item, asyncio.Event):
                        item.set()  # The mark of `GraphRun.end_node`.
                    elif mode == "custom":
                        run.put(_custom_event(item, run.tasks.path_of(space)))
                    elif "__interrupt__" in item:
                        paths = paths or {}
                        for interrupt in item["__interrupt__"]:
                            # A subgraph reports its own interrupts before the graph around it does.
                            paths.setdefault(interrupt.id, run.tasks.path_of(space))
                    elif not space:
                        last = self._last_written(item, last)
            if paths is None:
                break
            await run.flush()
            input = await answer_interrupts(graph, config, run, paths, self._to_resume)
            run_config = config
        # The answer has an agent path in the log, or is not in it: a value, or text of a subgraph or of another node.
        if isinstance(last, AIMessage) and run.authors.get(last.id or ""):
            last = read_text(last)
        elif isinstance(last, BaseMessage | None) or (isinstance(last, _Fields) and run.has_text):
            return
        run.write_reply(_text_of_value(last))

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

    async def _run_runnable(self, turn: Turn, config: RunnableConfig, run: GraphRun) -> None:
        steps = sdk_messages(turn.progress, turn.id)
        input = self._to_input(turn) if self._to_input else [*await whole_conversation(turn), *steps]
        stream = self._runnable.astream(input, config, **self._options)
        last: object = None
        has_text = False
        # The runnable writes all of its text again after a crash, and this much of it is in the log.
        shown = len(run.queue.journal.text) if run.queue.journal is not None and not turn.progress else 0
        run.begins_reply = True
        async with aclosing(cast("AsyncGenerator[Any]", stream)) as chunks:
            async for chunk in chunks:
                last = chunk
                if isinstance(chunk, str | BaseMessage) and (text := read_text(chunk)):
                    has_text = True
                    unseen, shown = text[shown:], max(0, shown - len(text))
                    run.write(unseen)
        if not has_text:
            run.write(_text_of_output(last))


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
