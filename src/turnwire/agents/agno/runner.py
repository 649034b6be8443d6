"""Recording of every run inside a turn, also of those that its tools start, such as `await other.arun(...)` in a tool.

The SDK has no hook that stands between it and a model or a tool, so the methods of `Model` are wrapped through which
all calls go. Runs outside a turn are left unchanged.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.run.agent import RunOutput
from agno.run.team import TeamRunOutput
from agno.team import Team
from agno.tools.function import Function, FunctionCall

from turnwire.agents.agno.events import AgnoRun
from turnwire.agents.agno.options import add_to_call
from turnwire.agents.sdk_internals import wrap
from turnwire.core.errors import AgentError
from turnwire.core.log.emit import is_in_turn

_SDK = "agno"
_REPLY = "self, messages, assistant_message"


def install_runner() -> None:
    """Wrap the methods, once. Raises RuntimeError for a version of the SDK that has others."""
    wrap(_SDK, Model, "aresponse_stream", "self, messages, tools", _offer_client_tools)
    wrap(_SDK, Model, "aprocess_response_stream", f"{_REPLY}, stream_data, tools", _record_stream)
    wrap(_SDK, Model, "_aprocess_model_response", f"{_REPLY}, model_response, tools", _record_whole)
    wrap(_SDK, Model, "arun_function_call", "self, function_call", _record_tool)
    wrap(_SDK, Model, "get_function_calls_to_run", "self, assistant_message, messages, functions", _check_calls)
    wrap(_SDK, Function, "_run_context")
    for kind in (Agent, Team):
        wrap(_SDK, kind, "arun", "self, input, **kwargs", _record_run)
    try:
        from agno.models.openai.chat import OpenAIChat
    except ImportError:
        return  # The agent's model is another provider's.
    wrap(_SDK, OpenAIChat, "_parse_provider_response_delta", "self, response_delta", _note_finish)


def start_run(agent: Agent | Team, options: dict[str, Any]) -> AsyncGenerator[Any]:
    """Start the turn's own run."""
    arun = wrap(_SDK, type(agent), "arun")
    return arun(agent, **{"stream": True, "stream_events": True, "yield_run_output": True, **options})


# Models


def _offer_client_tools(inner: Any) -> Any:
    async def aresponse_stream(model: Model, *args: Any, **options: Any) -> AsyncIterator[Any]:
        run = AgnoRun.current()
        if run is not None and run.client_functions:
            options["tools"] = [*(options.get("tools") or ()), *run.client_functions]
        async with aclosing(inner(model, *args, **options)) as events:
            async for event in events:
                yield event

    return aresponse_stream


def _record_stream(inner: Any) -> Any:
    async def aprocess_response_stream(
        model: Model, messages: list[Message], assistant_message: Message, **options: Any
    ) -> AsyncIterator[ModelResponse]:
        run = AgnoRun.current()
        if run is None:
            async for delta in inner(model, messages=messages, assistant_message=assistant_message, **options):
                yield delta
            return
        async with run.replying(model, messages) as call:
            if call is not None and not call.is_live:
                yield await run.repeat_reply(call, assistant_message)
                return
            own, arguments = add_to_call(run.options, run.has_called, model, {"messages": messages, **options})
            async with aclosing(inner(own, assistant_message=assistant_message, **arguments)) as deltas:
                async for delta in deltas:
                    run.read(delta)
                    await run.queue.wait_for_room()
                    yield delta
            await run.end_reply(call, model, assistant_message)

    return aprocess_response_stream


def _record_whole(inner: Any) -> Any:
    async def _aprocess_model_response(
        model: Model, messages: list[Message], assistant_message: Message, model_response: ModelResponse, **options: Any
    ) -> None:
        run = AgnoRun.current()
        details = {"assistant_message": assistant_message, "model_response": model_response}
        if run is None:
            return await inner(model, messages=messages, **details, **options)
        async with run.replying(model, messages) as call:
            if call is not None and not call.is_live:
                reply = await run.repeat_reply(call, assistant_message)
                # The SDK joins the texts of all replies of such a run.
                model_response.content = f"{model_response.content or ''}{reply.content or ''}" or None
                model_response.reasoning_content = reply.reasoning_content
                return None
            own, arguments = add_to_call(run.options, run.has_called, model, {"messages": messages, **options})
            await inner(own, **details, **arguments)
            content, reasoning = assistant_message.content, assistant_message.reasoning_content
            run.read(ModelResponse(content=content, reasoning_content=reasoning))
            await run.end_reply(call, model, assistant_message)

    return _aprocess_model_response


def _note_finish(inner: Any) -> Any:
    def _parse_provider_response_delta(model: Model, response_delta: Any) -> ModelResponse:
        if (run := AgnoRun.current()) is not None:
            run.note_finish(response_delta.choices[0].finish_reason if response_delta.choices else None)
        return inner(model, response_delta)

    return _parse_provider_response_delta


# Tools


def _record_tool(inner: Any) -> Any:
    async def arun_function_call(model: Model, function_call: FunctionCall) -> Any:
        run = AgnoRun.current()
        if run is None:
            return await inner(model, function_call)
        try:
            return await run.run_call(function_call, functools.partial(inner, model))
        except Exception as error:
            run.note_failure(error, model, is_tool=True)  # The SDK reports it as an answer.
            raise

    return arun_function_call


def _check_calls(inner: Any) -> Any:
    def get_function_calls_to_run(
        model: Model, assistant_message: Message, messages: list[Message], functions: Any = None
    ) -> list[FunctionCall]:
        calls = inner(model, assistant_message=assistant_message, messages=messages, functions=functions)
        if (run := AgnoRun.current()) is not None:
            run.check_calls(assistant_message, messages, calls)
        return calls

    return get_function_calls_to_run


# Runs that a tool starts


def _record_run(inner: Any) -> Any:
    def arun(agent: Agent | Team, *args: Any, **options: Any) -> Any:
        result = inner(agent, *args, **options)
        if not is_in_turn():
            return result
        return _recorded_output(agent, result) if asyncio.iscoroutine(result) else _recorded_events(agent, result)

    return arun


def _nested_run(agent: Agent | Team) -> AgnoRun:
    name = agent.name or "agent"
    run = AgnoRun.nested(name)
    run.agent = name
    return run


async def _recorded_output(agent: Agent | Team, running: Any) -> Any:
    run = _nested_run(agent)
    try:
        with run.entered():
            output = await running
        check_output(run, output)
        return output
    finally:
        run.leave()


async def _recorded_events(agent: Agent | Team, events: Any) -> AsyncIterator[Any]:
    run, done = _nested_run(agent), object()
    try:
        while True:
            with run.entered():  # Not over a `yield`, where the caller's code runs.
                event = await anext(events, done)
            if event is done:
                break
            check_output(run, event)
            yield event
    finally:
        await events.aclose()
        run.leave()


def check_output(run: AgnoRun, output: Any) -> None:
    """Raise the failure that a run has ended with, or AgentError for a pause: the SDK reports both as an answer."""
    if run.failure is not None:
        raise run.failure.error
    if isinstance(output, RunOutput | TeamRunOutput) and output.is_paused:
        raise AgentError(
            "the agent waits for input or for a tool that runs elsewhere, which Turnwire cannot bring to the SDK; "
            "use `ask()` in a tool, or tools of the client"
        )
