"""Wrapped methods of LangChain's models and tools, where all calls pass, sync and async.

A call inside a recorded run is answered from the journal if it has finished already (see `continuation`). Calls outside
of such a run are left unchanged.
"""

import inspect
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from copy import copy
from functools import wraps
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool

from turnwire.agents.langgraph.continuation import GraphRecorder, Metadata
from turnwire.tools.invocation import running_call_id

_recorder: ContextVar[GraphRecorder | None] = ContextVar("turnwire_langgraph_recorder", default=None)
_HOOKS: tuple[tuple[type, str, tuple[str, ...]], ...] = (
    (BaseChatModel, "_agenerate_with_cache", ("self", "messages", "stop", "run_manager", "kwargs")),
    (BaseChatModel, "_generate_with_cache", ("self", "messages", "stop", "run_manager", "kwargs")),
    (BaseChatModel, "astream", ("self", "input", "config", "stop", "kwargs")),
    (BaseChatModel, "stream", ("self", "input", "config", "stop", "kwargs")),
    (BaseTool, "_run", ("self", "args", "kwargs")),
    (BaseTool, "_arun", ("self", "args", "kwargs")),
)


def set_recorder(recorder: GraphRecorder) -> None:
    """Record the calls of everything that is started from the current task."""
    _recorder.set(recorder)


def check_hooks() -> None:
    """Raise RuntimeError if LangChain's classes do not have the methods that are wrapped here."""
    for owner, name, parameters in _HOOKS:
        method = getattr(owner, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            raise RuntimeError(
                f"langchain-core {version('langchain-core')} has another {owner.__name__}.{name} than the versions that"
                " Turnwire was tested with, so turns cannot continue after a crash: install an older version, or use"
                " LangGraphAgent(..., on_crash='close')"
            )


def install_hooks() -> None:
    """Wrap the methods of LangChain's models and tools, once. Outside a recorded run they work as before.

    Raises RuntimeError if LangChain has changed.
    """
    if getattr(BaseChatModel, "_turnwire_journals", False):
        return
    check_hooks()
    chat: Any = BaseChatModel
    chat._turnwire_journals = True
    chat._agenerate_with_cache = _journaled_agenerate(chat._agenerate_with_cache)
    chat._generate_with_cache = _journaled_generate(chat._generate_with_cache)
    chat.astream = _journaled_astream(chat.astream)
    chat.stream = _journaled_stream(chat.stream)
    tool: Any = BaseTool
    tool.arun = _journaled_tool(tool.arun)
    tool.run = _journaled_tool(tool.run)


def _journaled_agenerate(generate: Any) -> Any:
    @wraps(generate)
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
    @wraps(generate)
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
    @wraps(astream)
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
    @wraps(stream)
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

    @wraps(run)
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
