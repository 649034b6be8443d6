"""Wrapped methods of LangChain's models and tools, where all calls pass, sync and async, and the nodes of graphs.

A call inside a turn's run is answered from the journal if it has finished already. Other calls are left unchanged.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from copy import copy
from functools import wraps
from typing import Any
from uuid import UUID, uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.constants import START
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]

from turnwire.agents.langgraph.continuation import load_result
from turnwire.agents.langgraph.events import GraphRun, Wait, run_blocking
from turnwire.agents.langgraph.tasks import Metadata
from turnwire.agents.sdk_internals import wrap
from turnwire.core.journal.turn_journal import JournaledCall
from turnwire.tools.invocation import running_call_id

_MESSAGES_MODULE = "langgraph.pregel._messages"
"""The module of the handler that fills LangGraph's stream of messages."""
_GENERATE = "self, messages, stop, run_manager, **kwargs"
_STREAM = "self, input, config, stop, **kwargs"


def install_hooks() -> None:
    """Wrap the methods of LangChain's models and tools, once. Outside a recorded run they work as before.

    Raises RuntimeError for versions of LangChain and LangGraph whose internals differ.
    """
    wrap("langchain", BaseChatModel, "_agenerate_with_cache", _GENERATE, _journaled_agenerate)
    wrap("langchain", BaseChatModel, "_generate_with_cache", _GENERATE, _journaled_generate)
    wrap("langchain", BaseChatModel, "astream", _STREAM, _journaled_astream)
    wrap("langchain", BaseChatModel, "stream", _STREAM, _journaled_stream)
    wrap("langchain", BaseChatModel, "_convert_input", "self, model_input")
    wrap("langchain", BaseTool, "arun", "self, tool_input, config", _journaled_tool)
    wrap("langchain", BaseTool, "run", "self, tool_input, config", _journaled_tool)
    wrap("langchain", BaseTool, "_arun", "self, *args, **kwargs")
    wrap("langchain", BaseTool, "_run", "self, *args, **kwargs")
    handler = wrap("langgraph", _MESSAGES_MODULE, "StreamMessagesHandler", "stream, subgraphs")
    wrap("langgraph", handler(print, True), "metadata")
    for name in ("_func", "_afunc", "_tools_by_name", "_injected_args"):
        wrap("langgraph", ToolNode([]), name)


# Models


async def _begin_reply(
    run: GraphRun, wait: Wait, model: Any, run_id: UUID, metadata: Metadata, messages: Any, arguments: dict[str, Any]
) -> tuple[JournaledCall | None, dict[str, Any]]:
    """Begin a model call, and return the arguments that it is made with."""
    arguments = run.request_options(model, metadata, arguments, messages)
    return await wait(run.begin_reply(run_id, model, metadata, messages)), arguments


async def _generate(
    run: GraphRun, wait: Wait, model: Any, generate: Any, messages: Any, run_manager: Any, arguments: dict[str, Any]
) -> Any:
    run_id, metadata = run_manager.run_id, run_manager.metadata
    call, arguments = await _begin_reply(run, wait, model, run_id, metadata, messages, arguments)
    if call is not None and not call.is_live:
        return run.recorded_reply(call)
    _leave_message_stream(run, run_id, run_manager.handlers)
    return await generate(model, messages, run_manager=run_manager, **arguments)


def _journaled_agenerate(generate: Any) -> Any:
    async def journaled(self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        run = GraphRun.around()
        if run is None or run_manager is None:
            return await generate(self, messages, stop, run_manager, **kwargs)
        return await _generate(run, run.on_loop, self, generate, messages, run_manager, {"stop": stop, **kwargs})

    return journaled


def _journaled_generate(generate: Any) -> Any:
    async def blocking(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, **kwargs)

    def journaled(self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        run = GraphRun.around()
        if run is None or run_manager is None or run.queue.is_on_loop:
            return generate(self, messages, stop, run_manager, **kwargs)
        return run_blocking(
            _generate(run, run.in_thread, self, blocking, messages, run_manager, {"stop": stop, **kwargs})
        )

    return journaled


async def _begin_stream(
    run: GraphRun, wait: Wait, model: Any, input: Any, config: RunnableConfig | None, arguments: dict[str, Any]
) -> tuple[JournaledCall | None, RunnableConfig, dict[str, Any]]:
    config = ensure_config(config)
    run_id = config.get("run_id") or uuid4()
    messages = model._convert_input(input).to_messages()
    call, arguments = await _begin_reply(run, wait, model, run_id, config.get("metadata") or {}, messages, arguments)
    return call, {**config, "run_id": run_id}, arguments


def _journaled_astream(astream: Any) -> Any:
    async def journaled(
        self: Any, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        kwargs = {"stop": stop, **kwargs}
        if (run := GraphRun.around()) is not None:
            call, config, kwargs = await _begin_stream(run, run.on_loop, self, input, config, kwargs)
            if call is not None and not call.is_live:
                yield _as_chunk(await self.ainvoke(input, config, **kwargs))
                return
        async with aclosing(astream(self, input, config, **kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    return journaled


def _journaled_stream(stream: Any) -> Any:
    def journaled(self: Any, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Iterator[Any]:
        kwargs = {"stop": stop, **kwargs}
        run = GraphRun.around()
        if run is not None and not run.queue.is_on_loop:
            call, config, kwargs = run_blocking(_begin_stream(run, run.in_thread, self, input, config, kwargs))
            if call is not None and not call.is_live:
                yield _as_chunk(self.invoke(input, config, **kwargs))
                return
        yield from stream(self, input, config, **kwargs)

    return journaled


def _leave_message_stream(run: GraphRun, run_id: UUID, handlers: Iterable[Any]) -> None:
    """Let no tokens of a model call enter the graph's stream of messages.

    The listener records the tokens itself, and to send a token through the graph costs more than all else that is done
    with it. A stream that code inside a node has opened is left alone: it has not seen the tasks of the turn's own
    graph begin.
    """
    for handler in handlers:
        if type(handler).__module__ == _MESSAGES_MODULE and run.tasks.own_tasks & handler.metadata.keys():
            handler.metadata.pop(run_id, None)


# Tools


def _journaled_tool(run: Any) -> Any:
    """Wrap `BaseTool.run` or `arun`: the tool's own function is journaled, between the callbacks for start and end."""

    def journaled(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        graph = GraphRun.around()
        if graph is None or "_arun" in vars(self):
            return run(self, *args, **kwargs)
        metadata: Metadata = ensure_config(kwargs.get("config")).get("metadata") or {}
        return run(_with_journaled_functions(self, graph, metadata), *args, **kwargs)

    return journaled


def _with_journaled_functions(tool: BaseTool, graph: GraphRun, metadata: Metadata) -> BaseTool:
    """Return a copy of the tool for one call. Its functions call those of the tool itself."""
    inner: Any = tool

    @wraps(inner._arun)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        call = graph.find_tool(running_call_id())
        if call is None or not graph.queue.is_on_loop:
            return await inner._arun(*args, **kwargs)
        return await graph.call_tool(tool, call, metadata, lambda: inner._arun(*args, **kwargs), graph.on_loop)

    @wraps(inner._run)
    def run(*args: Any, **kwargs: Any) -> Any:
        async def blocking() -> Any:
            return inner._run(*args, **kwargs)

        call = graph.find_tool(running_call_id())
        if call is None or graph.queue.is_on_loop:
            return inner._run(*args, **kwargs)
        return run_blocking(graph.call_tool(tool, call, metadata, blocking, graph.in_thread))

    journaled = copy(tool)
    vars(journaled).update(_arun=arun, _run=run)
    return journaled


def _as_chunk(message: AIMessage) -> AIMessageChunk:
    fields = {name: value for name, value in message.__dict__.items() if name != "type" and value is not None}
    return AIMessageChunk(**fields, chunk_position="last")


# Nodes


class _JournaledNode(Runnable[Any, Any]):
    """The code of a node, which is not run again if it had ended before a crash."""

    def __init__(self, name: str, inner: Runnable[Any, Any], run: GraphRun) -> None:
        self.name = name
        self._inner = inner
        self._run = run

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._inner.invoke(input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        run, name, metadata = self._run, self.name or "", ensure_config(config).get("metadata") or {}
        journal = run.queue.journal
        if journal is None or not run.queue.is_on_loop:
            return await self._inner.ainvoke(input, config, **kwargs)
        if (recorded := run.find_output(name, metadata)) is not None:
            return load_result(recorded)
        since = journal.position
        try:
            with journal.inside(run.place_of(metadata)):
                output = await self._inner.ainvoke(input, config, **kwargs)
        except GraphInterrupt as error:
            run.note_interrupt(error, run.place_of(metadata))
            raise
        await run.end_node(name, metadata, since, output)
        return output


def journal_nodes(graph: Any, run: GraphRun) -> Any:
    """Return a copy of the graph whose nodes, also those of its subgraphs, are not run again when they have ended."""
    nodes: dict[str, Any] = dict(graph.nodes)
    for name, node in nodes.items():
        if name != START and node.timeout is None:
            bound: Any = node.bound
            inner = journal_nodes(bound, run) if isinstance(bound, Pregel) else bound
            nodes[name] = node.copy({"bound": _JournaledNode(name, inner, run)})
    return graph.copy({"nodes": nodes})
