"""A graph or another runnable as an agent.

    from langchain.agents import create_agent

    agent = LangGraphAgent(create_agent(model, tools=[search], checkpointer=saver), config={"recursion_limit": 20})

A graph's models and tools are listened to with a callback handler, so that a token or a result is told when it is
there; what its nodes write and what `get_stream_writer()` sends comes from `astream`. Of any other runnable the answer
is what it streams out. Both run in a task of their own, which is cancelled when the turn is.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import Any, cast

import msgspec
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]
from pydantic_core import to_json

from turnwire.agents.langgraph.approvals import ToResume, resume, waiting
from turnwire.agents.langgraph.errors import explain
from turnwire.agents.langgraph.events import EventRelay, GraphListener, Pause, Written
from turnwire.agents.langgraph.messages import Heard, Path, fields_of, langchain_messages, read_text, unanswered
from turnwire.core.events import CustomEvent, Event, EventBase
from turnwire.core.turns import Turn
from turnwire.tools.invocation import plain

_MODES = ["messages", "updates", "custom"]


class LangGraphAgent:
    """`config` is a `RunnableConfig`. The session is the thread of a graph's checkpointer, which then keeps the
    history; without one the graph is given the history of the turn.

    `to_input` makes what the runnable is given; by default that is `{"messages": [...]}` for a graph, and the messages
    for any other. `to_context` makes the context of a graph's run, for nodes and tools that must know who asks; other
    options go to `astream`. `to_resume` makes what an `interrupt()` of the graph's own returns, of the decision and of
    the value it was called with; by default that is whether it was approved. `answer_nodes` are the nodes of a graph
    whose text is the answer, by default all of them; the text of others is theirs alone, told with their name as
    `agent_path`.
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
        **options: Any,
    ) -> None:
        self._runnable = runnable
        self._config: RunnableConfig = config or {}
        self._to_input = to_input
        self._to_context = to_context
        self._to_resume = to_resume
        self._answer_nodes = answer_nodes
        self._options = options

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        queue: asyncio.Queue[Heard | Written | None] = asyncio.Queue()
        is_graph = isinstance(self._runnable, Pregel)
        teller = EventRelay(turn.id, queue.put_nowait)
        listener = GraphListener(teller, tells_text=is_graph, answer_nodes=self._answer_nodes)
        config = self._run_config(turn, listener, Pause(teller))
        reading = self._read_graph(turn, config, listener) if is_graph else self._read_runnable(turn, config)
        running = asyncio.create_task(_pour(reading, queue.put_nowait))
        running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (heard := await queue.get()) is not None:
                if isinstance(heard, Written):
                    heard.set()
                else:
                    yield heard
            if error := running.exception():
                explained = explain(error, listener)
                if explained is None or explained is error:
                    raise error
                raise explained from error
        finally:
            teller.close()
            # Also closes the connection to the model's server.
            running.cancel()
            await asyncio.wait({running})

    def _run_config(self, turn: Turn, *handlers: BaseCallbackHandler) -> RunnableConfig:
        given = self._config.get("callbacks") or []
        listening = given if isinstance(given, list) else given.handlers
        # Not even the application's own word goes before it: one thread for all would show everybody's words to all.
        configurable = {**self._config.get("configurable", {}), "thread_id": turn.session_id}
        return {**self._config, "callbacks": [*listening, *handlers], "configurable": configurable}

    async def _read_graph(self, turn: Turn, config: RunnableConfig, listener: GraphListener) -> AsyncGenerator[Heard]:
        graph = cast("Pregel[Any, Any, Any, Any]", self._runnable)
        last: object = None
        interrupted: dict[str, Path] | None = None
        if turn.resumption is not None:
            given, told_first = await resume(graph, config, listener, turn.resumption, self._to_resume)
            for told in told_first:
                yield told
        else:
            given = self._to_input(turn) if self._to_input else {"messages": await _graph_messages(graph, turn, config)}
        options = {**self._options, "context": self._to_context(turn)} if self._to_context else self._options
        stream = graph.astream(given, config, stream_mode=_MODES, subgraphs=True, **options)  # type: ignore[arg-type]
        async with aclosing(cast("AsyncGenerator[Any]", stream)) as items:
            async for space, mode, item in items:
                if mode == "messages":
                    for told in listener.read_message(item[0], item[1], space):
                        yield told
                elif mode == "custom":
                    yield _custom_event(item, listener.path_of(space))
                elif "__interrupt__" in item:
                    interrupted = interrupted or {}
                    for one in item["__interrupt__"]:
                        # A subgraph tells of its own before the graph around it does.
                        interrupted.setdefault(one.id, listener.path_of(space))
                elif not space:
                    last = self._last_written(item, last)
        if interrupted is not None:
            raise await waiting(graph, config, listener, interrupted)
        if not isinstance(last, BaseMessage | None):
            yield to_json(last).decode()
        # A subgraph has written the answer: its tokens were told as its own, and now they are the graph's.
        elif isinstance(last, AIMessage) and listener.is_of_subgraph(last) and (text := read_text(last)):
            yield text

    def _last_written(self, update: Any, last: object) -> object:
        """The last message of those that nodes of the graph itself have written, or the value that an agent answers."""
        for node, written in fields_of(update).items():
            if self._answer_nodes is None or node in self._answer_nodes:
                state = fields_of(written)
                messages: Any = state.get("messages") or last
                last = cast("list[Any]", messages)[-1] if isinstance(messages, list) else messages
                value = state.get("structured_response")
                # Some models write the value as text, and that was told.
                if value is not None and not (isinstance(last, AIMessage) and read_text(last)):
                    last = value
        return last

    async def _read_runnable(self, turn: Turn, config: RunnableConfig) -> AsyncGenerator[Heard]:
        given = (
            self._to_input(turn) if self._to_input else [*langchain_messages(turn.history), HumanMessage(turn.message)]
        )
        stream = self._runnable.astream(given, config, **self._options)
        last: object = None
        told = False
        async with aclosing(cast("AsyncGenerator[Any]", stream)) as chunks:
            async for chunk in chunks:
                last = chunk
                if isinstance(chunk, str | BaseMessage) and (text := read_text(chunk)):
                    told = True
                    yield text
        if not told and (text := _text_of_output(last)):
            yield text


async def _pour(reading: AsyncGenerator[Heard], put: Callable[[Heard], None]) -> None:
    async with aclosing(reading):
        async for heard in reading:
            put(heard)


async def _graph_messages(graph: Any, turn: Turn, config: RunnableConfig) -> list[BaseMessage]:
    if not graph.checkpointer:
        return _whole_conversation(turn)
    # A turn that was stopped may have left calls without results, which no model provider takes. Those of its last
    # step are not written yet, and a new message would lose them.
    state = await graph.aget_state(config)
    messages = _messages_in(state)
    written = {message.id for message in _messages_in(await graph.aget_state(state.config))} if state.next else None
    kept = [message for message in messages if written is not None and message.id not in written]
    return [*kept, *unanswered(messages), HumanMessage(turn.message)]


def _messages_in(state: Any) -> list[BaseMessage]:
    return fields_of(state.values).get("messages", [])


def _whole_conversation(turn: Turn) -> list[BaseMessage]:
    return [*langchain_messages(turn.history), HumanMessage(turn.message)]


def _custom_event(item: Any, path: tuple[str, ...]) -> Event:
    if isinstance(item, EventBase):
        event = cast("Event", item)
        return msgspec.structs.replace(event, agent_path=path) if path and not event.agent_path else event
    kind = fields_of(item).get("type")
    return CustomEvent(name=kind if isinstance(kind, str) else "custom", data=plain(item), agent_path=path)


def _text_of_output(output: Any) -> str:
    """The answer of a runnable that gives a whole state, as agents of old do."""
    fields = fields_of(output)
    said: Any = (fields.get("messages") or [fields.get("output")])[-1]
    return read_text(said) if isinstance(said, str | BaseMessage) else ""
