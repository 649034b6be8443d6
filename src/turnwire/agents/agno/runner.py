"""Recording of every run inside a turn, also of those that its tools start, such as `await other.arun(...)` in a tool.

The SDK has no hook that stands between it and a model or a tool, so the methods of `Model` are wrapped through which
all calls go. Runs outside a turn are left unchanged.
"""

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.run.agent import RunOutput
from agno.run.team import TeamRunOutput
from agno.team import Team
from agno.tools.function import FunctionCall

from turnwire.agents.agent_paths import leave_agent
from turnwire.agents.agno.events import AgnoRun, entered_run, running_run
from turnwire.agents.agno.options import add_to_call
from turnwire.agents.event_queue import enter_run
from turnwire.core.errors import AgentError
from turnwire.core.log.emit import is_in_turn

_WRAPPED = "turnwire_wrapped"


def install_runner() -> None:
    """Wrap the methods, once. Raises RuntimeError for a version of the SDK that has others."""
    _wrap(Model, "aresponse_stream", _offer_client_tools)
    _wrap(Model, "aprocess_response_stream", _record_stream)
    _wrap(Model, "_aprocess_model_response", _record_whole)
    _wrap(Model, "arun_function_call", _record_tool)
    _wrap(Model, "get_function_calls_to_run", _check_calls)
    for kind in (Agent, Team):
        _wrap(kind, "arun", _record_run)
    try:
        from agno.models.openai.chat import OpenAIChat
    except ImportError:
        return  # The agent's model is another provider's.
    _wrap(OpenAIChat, "_parse_provider_response_delta", _note_finish)


def _wrap(kind: Any, name: str, make: Callable[[Any], Any]) -> None:
    inner = getattr(kind, name, None)
    if inner is None:
        raise RuntimeError(
            f"this version of agno has no {kind.__name__}.{name}; install the version in constraints.txt"
        )
    if not hasattr(inner, _WRAPPED):
        wrapper = functools.wraps(inner)(make(inner))
        setattr(wrapper, _WRAPPED, inner)
        setattr(kind, name, wrapper)


def start_run(agent: Agent | Team, options: dict[str, Any]) -> AsyncGenerator[Any]:
    """Start the turn's own run, or continue it if the options have its `run_response`."""
    kind: Any = type(agent)
    options = {"stream": True, "stream_events": True, "yield_run_output": True, **options}
    if "run_response" in options:
        return kind.acontinue_run(agent, **options)
    return getattr(kind.arun, _WRAPPED)(agent, **options)


# Models


def _offer_client_tools(inner: Any) -> Any:
    async def aresponse_stream(model: Model, *args: Any, **options: Any) -> AsyncIterator[Any]:
        run = running_run()
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
        run = running_run()
        if run is None:
            async for delta in inner(model, messages=messages, assistant_message=assistant_message, **options):
                yield delta
            return
        call = await run.begin_reply(model, messages)
        try:
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
        except Exception as error:
            run.note_failure(error, model)
            raise
        finally:
            if call is not None:
                call.__exit__(None, None, None)

    return aprocess_response_stream


def _record_whole(inner: Any) -> Any:
    async def _aprocess_model_response(
        model: Model, messages: list[Message], assistant_message: Message, model_response: ModelResponse, **options: Any
    ) -> None:
        run = running_run()
        details = {"assistant_message": assistant_message, "model_response": model_response}
        if run is None:
            return await inner(model, messages=messages, **details, **options)
        call = await run.begin_reply(model, messages)
        try:
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
        except Exception as error:
            run.note_failure(error, model)
            raise
        finally:
            if call is not None:
                call.__exit__(None, None, None)

    return _aprocess_model_response


def _note_finish(inner: Any) -> Any:
    def _parse_provider_response_delta(model: Model, response_delta: Any) -> ModelResponse:
        if (run := running_run()) is not None:
            run.note_finish(response_delta.choices[0].finish_reason if response_delta.choices else None)
        return inner(model, response_delta)

    return _parse_provider_response_delta


# Tools


def _record_tool(inner: Any) -> Any:
    async def arun_function_call(model: Model, function_call: FunctionCall) -> Any:
        run = running_run()
        if run is None:
            return await inner(model, function_call)
        try:
            return await run.run_call(function_call, functools.partial(inner, model))
        except Exception as error:
            run.note_failure(error, model, by_tool=True)  # The SDK reports it as an answer.
            raise

    return arun_function_call


def _check_calls(inner: Any) -> Any:
    def get_function_calls_to_run(
        model: Model, assistant_message: Message, messages: list[Message], functions: Any = None
    ) -> list[FunctionCall]:
        calls = inner(model, assistant_message=assistant_message, messages=messages, functions=functions)
        if (run := running_run()) is not None:
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


def _enter(agent: Agent | Team) -> AgnoRun:
    name = agent.name or "agent"
    return AgnoRun(*enter_run(running_run(), name), name)


async def _recorded_output(agent: Agent | Team, running: Any) -> Any:
    run = _enter(agent)
    try:
        with entered_run(run):
            output = await running
        _check_output(agent, run, output)
        return output
    finally:
        leave_agent(run.path)


async def _recorded_events(agent: Agent | Team, events: Any) -> AsyncIterator[Any]:
    run, done = _enter(agent), object()
    try:
        while True:
            with entered_run(run):  # Not over a `yield`, where the caller's code runs.
                event = await anext(events, done)
            if event is done:
                break
            _check_output(agent, run, event)
            yield event
    finally:
        await events.aclose()
        leave_agent(run.path)


def _check_output(agent: Agent | Team, run: AgnoRun, output: Any) -> None:
    """Raise the failure or the pause that a sub-agent has ended with: the SDK reports both as an answer."""
    if run.failure is not None:
        raise run.failure.error
    if isinstance(output, RunOutput | TeamRunOutput) and output.is_paused:
        raise AgentError(
            f"the agent {agent.name!r} needs an approval in a run of its own, which cannot be continued; "
            "give its tools to the agent of the turn"
        )
