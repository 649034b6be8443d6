"""Wrapped methods of LangChain's models and tools, where all calls pass, sync and async.

A call inside a recorded run is answered from the journal if it has finished already (see `continuation`). Calls outside
of such a run are left unchanged.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode

from turnwire.agents.langgraph.continuation import GraphRecorder, Metadata
from turnwire.agents.langgraph.events import MESSAGES_MODULE
from turnwire.agents.sdk_internals import wrap
from turnwire.tools.invocation import running_call_id

_recorder: ContextVar[GraphRecorder | None] = ContextVar("turnwire_langgraph_recorder", default=None)
_GENERATE = "self, messages, stop, run_manager, **kwargs"
_STREAM = "self, input, config, stop, **kwargs"


def set_recorder(recorder: GraphRecorder) -> None:
    """Record the calls of everything that is started from the current task."""
    _recorder.set(recorder)


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
    wrap("langgraph", MESSAGES_MODULE, "StreamMessagesHandler")
    wrap("langgraph", ToolNode, "_func")
    wrap("langgraph", ToolNode, "_afunc")


def _journaled_agenerate(generate: Any) -> Any:
    async def journaled(self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        recorder = _recorder.get()
        if recorder is None or run_manager is None:
            return await generate(self, messages, stop, run_manager, **kwargs)
        run_id = run_manager.run_id
        kwargs, stop = recorder.request_options(self, run_manager.metadata, kwargs, stop, messages)
        call = await recorder.on_loop(recorder.begin_reply(run_id, self, run_manager.metadata, messages))
        if not call.is_live:
            return recorder.recorded_reply(run_id, call)
        run_manager.handlers = recorder.listener.mute_message_stream(run_manager.handlers)
        return await generate(self, messages, stop, run_manager, **kwargs)

    return journaled


def _journaled_generate(generate: Any) -> Any:
    def journaled(self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        recorder = _recorder.get()
        if recorder is None or run_manager is None or recorder.is_on_loop:
            return generate(self, messages, stop, run_manager, **kwargs)
        run_id = run_manager.run_id
        kwargs, stop = recorder.request_options(self, run_manager.metadata, kwargs, stop, messages)
        call = recorder.wait(recorder.begin_reply(run_id, self, run_manager.metadata, messages))
        if not call.is_live:
            return recorder.recorded_reply(run_id, call)
        run_manager.handlers = recorder.listener.mute_message_stream(run_manager.handlers)
        return generate(self, messages, stop, run_manager, **kwargs)

    return journaled


def _journaled_astream(astream: Any) -> Any:
    async def journaled(
        self: Any, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any
    ) -> AsyncGenerator[Any]:
        recorder = _recorder.get()
        if recorder is not None:
            config = _with_run_id(config)
            messages = self._convert_input(input).to_messages()
            kwargs, stop = recorder.request_options(self, config.get("metadata") or {}, kwargs, stop, messages)
            begin = recorder.begin_reply(config["run_id"], self, config.get("metadata") or {}, messages)
            if not (await recorder.on_loop(begin)).is_live:
                yield _as_chunk(await self.ainvoke(input, config, stop=stop, **kwargs))
                return
        async with aclosing(astream(self, input, config, stop=stop, **kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    return journaled


def _journaled_stream(stream: Any) -> Any:
    def journaled(self: Any, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any) -> Iterator[Any]:
        recorder = _recorder.get()
        if recorder is not None and not recorder.is_on_loop:
            config = _with_run_id(config)
            messages = self._convert_input(input).to_messages()
            kwargs, stop = recorder.request_options(self, config.get("metadata") or {}, kwargs, stop, messages)
            begin = recorder.begin_reply(config["run_id"], self, config.get("metadata") or {}, messages)
            if not recorder.wait(begin).is_live:
                yield _as_chunk(self.invoke(input, config, stop=stop, **kwargs))
                return
        yield from stream(self, input, config, stop=stop, **kwargs)

    return journaled


def _with_run_id(config: RunnableConfig | None) -> RunnableConfig:
    config = ensure_config(config)
    return {**config, "run_id": config.get("run_id") or uuid4()}


def _journaled_tool(run: Any) -> Any:
    """Wrap `BaseTool.run` or `arun`: the tool's own function is journaled, between the callbacks for start and end."""

    def journaled(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder.get()
        if recorder is None or "_arun" in vars(self):
            return run(self, *args, **kwargs)
        metadata: Metadata = ensure_config(kwargs.get("config")).get("metadata") or {}
        return run(_with_journaled_functions(self, recorder, metadata), *args, **kwargs)

    return journaled


def _with_journaled_functions(tool: BaseTool, recorder: GraphRecorder, metadata: Metadata) -> BaseTool:
    """Return a copy of the tool for one call. Its functions call those of the tool itself."""
    inner: Any = tool

    @wraps(inner._arun)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        call = recorder.listener.find_tool(running_call_id())
        if call is None or not recorder.is_on_loop:
            return await inner._arun(*args, **kwargs)
        return await recorder.call_tool(tool, call, metadata, lambda: inner._arun(*args, **kwargs))

    @wraps(inner._run)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = recorder.listener.find_tool(running_call_id())
        if call is None or recorder.is_on_loop:
            return inner._run(*args, **kwargs)
        return recorder.call_tool_in_thread(tool, call, metadata, lambda: inner._run(*args, **kwargs))

    journaled = copy(tool)
    vars(journaled).update(_arun=arun, _run=run)
    return journaled


def _as_chunk(message: AIMessage) -> AIMessageChunk:
    fields = {name: value for name, value in message.__dict__.items() if name != "type" and value is not None}
    return AIMessageChunk(**fields, chunk_position="last")
