"""Runner and models that record a turn's runs, also those that its tools start.

The SDK runs an agent that is used as a tool, or called with `Runner.run` inside one, with its default runner. Our
runner wraps that default and leaves runs outside our turns unchanged. It also wraps the models of a run. The log is
written from their streams and not from the SDK's: there a reply precedes the tools that it requests, and a truncated
reply can still be rejected.
"""

import asyncio
import copy
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, nullcontext, suppress
from functools import partial
from typing import Any

import openai
from agents import Agent, Model, ModelSettings, RunConfig, RunResultStreaming
from agents.models import get_default_model_settings
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.tool_context import ToolContext
from openai.types.responses import Response

from turnwire.agents.openai_agents.continuation import completed, dump_reply, journal_tool, load_reply
from turnwire.agents.openai_agents.errors import explain_failure
from turnwire.agents.openai_agents.events import Hooks, Run, error_formatter, failure_text, read_item
from turnwire.agents.openai_agents.internals import check_internals
from turnwire.agents.openai_agents.messages import with_inputs
from turnwire.agents.openai_agents.options import request_settings, run_settings
from turnwire.agents.run_recorder import CallFailure
from turnwire.core.errors import ModelError
from turnwire.core.journal.turn_journal import JournaledCall
from turnwire.core.log.emit import is_in_turn
from turnwire.core.log.events import Usage
from turnwire.models.chat_completions import ChatReader
from turnwire.models.responses import ResponsesReader

_ENDINGS = ("response.completed", "response.incomplete")
# Tools that run at the provider; no hook reports them.
_ITEM_EVENTS = ("response.output_item.added", "response.output_item.done")
_HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")
# A malformed chunk (no JSON, no UTF-8, wrong shape) is some ValueError.
_FAILURES = (openai.OpenAIError, ValueError)


class TurnAgentRunner(AgentRunner):
    """Wrapper of `inner` that records the runs inside a turn."""

    def __init__(self, inner: AgentRunner) -> None:
        self.inner = inner

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        if not _is_recorded():
            return await self.inner.run(starting_agent, input, **options)
        # Streamed, so that a sub-agent's text reaches the log while it is written.
        outer, run = Run.current(), Run.nested(starting_agent.name)
        result: RunResultStreaming | None = None
        try:
            result = start_run(self.inner, run, starting_agent, input, options)
            async for event in result.stream_events():
                read_item(run, event)
        except BaseException as error:
            if result is not None:
                result.cancel()
            if isinstance(error, Exception) and isinstance(context := options.get("context"), ToolContext):
                # The calling model reads the error of an agent that is used as a tool.
                error = explain_failure(error, run)
                _fail_call(outer, context, error)
            raise error
        finally:
            run.leave()
        return result

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        if is_in_turn() and type(self.inner) is AgentRunner:
            return super().run_sync(starting_agent, input, **options)  # It calls our `run`.
        return self.inner.run_sync(starting_agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResultStreaming:
        if not _is_recorded():
            return self.inner.run_streamed(starting_agent, input, **options)
        outer, run = Run.current(), Run.nested(starting_agent.name)
        result = start_run(self.inner, run, starting_agent, input, options)
        if result.run_loop_task is None:
            run.leave()
        else:
            result.run_loop_task.add_done_callback(partial(_note_end, outer, run, options.get("context")))
        return result


def _is_recorded() -> bool:
    """Return True if a new run is part of a turn."""
    return Run.current() is not None or is_in_turn()


def _note_end(outer: Run | None, run: Run, context: Any, ended: asyncio.Task[Any]) -> None:
    """Record the end, and the failure, of a run that the application reads itself."""
    run.leave()
    if not isinstance(context, ToolContext) or ended.cancelled():
        return
    if isinstance(error := ended.exception(), Exception):
        _fail_call(outer, context, explain_failure(error, run))


def _fail_call(outer: Run | None, context: Any, error: Exception) -> None:
    if outer is not None:
        outer.fail_call(context.tool_call_id, failure_text(context.tool_name, error))


def install_runner() -> AgentRunner:
    """Wrap the SDK's default runner, once, and return the wrapped one. Raises RuntimeError for another SDK."""
    check_internals()
    runner = get_default_agent_runner()
    if not isinstance(runner, TurnAgentRunner):
        runner = TurnAgentRunner(runner)
        set_default_agent_runner(runner)
    return runner.inner


def start_run(
    runner: AgentRunner, run: Run, agent: Agent[Any], input: Any, options: dict[str, Any]
) -> RunResultStreaming:
    """Start a recorded run. The caller must read it to its end or cancel it."""
    hooks = Hooks(run, options.get("hooks"), journal_tool)
    config: RunConfig | dict[str, Any] = options.get("run_config") or RunConfig()
    if isinstance(config, dict):
        config = RunConfig(**config)
    if isinstance(config.model, WatchedModel):
        config = config.model.config  # An agent as a tool gets the configuration of the outer run.
    recorded = dataclasses.replace(
        config,
        model=WatchedModel(run, hooks, config),
        tool_error_formatter=error_formatter(run, config.tool_error_formatter),
    )
    if run.options.names:
        settings = config.model_settings or ModelSettings()
        recorded = dataclasses.replace(recorded, model_settings=settings.resolve(run_settings(run.options)))
    run_options: dict[str, Any] = {**options, "hooks": hooks, "run_config": recorded}
    with run.entered():
        return runner.run_streamed(agent, input, **run_options)


# Models


class WatchedModel(Model):
    """Stand-in for all models of a run; it calls the model that `config` or the agent names."""

    def __init__(self, run: Run, hooks: Hooks, config: RunConfig) -> None:
        self.config = config
        self._run = run
        self._hooks = hooks
        self._used: list[Model] = []

    async def get_response(self, *args: Any, **options: Any) -> Any:
        # All our runs are streamed; the SDK's interface requires this method.
        model, _ = self._find()
        return await model.get_response(*args, **options)

    async def stream_response(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *args: Any, **options: Any
    ) -> AsyncGenerator[Any]:
        run, (model, _) = self._run, self._find()
        if run.options.instructions:
            system_instructions = run.options.extend(system_instructions or "")
        input = await with_inputs(run, input, options)
        # The value of a sub-agent is for the code that runs it, such as a guardrail.
        run.hides_text = bool(run.path) and self._answers_with_value()
        names = (self._hooks.agent.name if self._hooks.agent else "", _name(model))
        call = await run.begin_model(names, lambda: (system_instructions, input))
        with call or nullcontext():
            if call is not None and not call.is_live:
                response = load_reply(call.result)
                await run.show_again(call, response.output_text)
                yield completed(response)
                return
            async with aclosing(self._stream(system_instructions, input, model_settings, *args, **options)) as events:
                async for event in events:
                    if getattr(event, "type", None) == "response.completed":
                        await self._finish(call, event.response)
                    yield event

    async def _finish(self, call: JournaledCall | None, response: Response) -> None:
        usage = response.usage and Usage(response.usage.input_tokens, response.usage.output_tokens)
        await self._run.finish_model(call, lambda: dump_reply(response), usage)

    async def _stream(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *args: Any, **options: Any
    ) -> AsyncGenerator[Any]:
        """Call the model, and write its reply to the log."""
        model, implied = self._find()
        settings = implied.resolve(model_settings)
        name = _name(model)
        is_chat = isinstance(model, OpenAIChatCompletionsModel)
        if is_chat:
            settings = settings.resolve(request_settings(self._run.options, is_chat=True))
            if settings.include_usage is None:
                settings = settings.resolve(ModelSettings(include_usage=True))
            model = _with_recorded_chunks(model, self._run, ChatReader(name))
        elif self._run.options.response_format:
            settings = settings.resolve(request_settings(self._run.options, is_chat=False))
        stream: Any = model.stream_response(system_instructions, input, settings, *args, **options)
        recorded_stream = stream if is_chat else _record(stream, self._run, ResponsesReader(name))
        try:
            async with aclosing(stream), aclosing(recorded_stream):
                async for event in recorded_stream:
                    self._record_hosted_tool(event)
                    yield event
        except _FAILURES as error:
            self._run.failure = CallFailure(error, name)
            raise

    def get_retry_advice(self, request: Any) -> Any:
        return self._used[-1].get_retry_advice(request) if self._used else None

    async def _cleanup_on_run_end(self, owner: object) -> None:
        for model in self._used:
            await model._cleanup_on_run_end(owner)  # pyright: ignore[reportPrivateUsage]

    def _find(self) -> tuple[Model, ModelSettings]:
        """Return the agent's model, found as the SDK finds it, and the settings that its name implies."""
        agent = self._hooks.agent
        name = self.config.model or (agent and agent.model)
        model = name if isinstance(name, Model) else self.config.model_provider.get_model(name)
        if model not in self._used:
            self._used.append(model)
        return model, self._implied_settings()

    def _answers_with_value(self) -> bool:
        agent = self._hooks.agent
        return agent is not None and agent.output_type not in (None, str)

    def _implied_settings(self) -> ModelSettings:
        # The SDK drops them for a model object, which it gets from us instead of a name.
        agent = self._hooks.agent
        if agent is None or self.config.model is not None or isinstance(agent.model, Model):
            return ModelSettings()
        implied = get_default_model_settings(agent.model)
        return implied if agent.model_settings == implied else ModelSettings()

    def _record_hosted_tool(self, event: Any) -> None:
        # Check the type first: reading a field that a pydantic model lacks takes longer than everything else here.
        item: Any = event.item if getattr(event, "type", None) in _ITEM_EVENTS else None
        if getattr(item, "type", None) not in _HOSTED:
            return
        tool = getattr(item, "name", None) or item.type.removesuffix("_call")
        # An approved call was recorded under the id of its approval request.
        call_id = getattr(item, "approval_request_id", None) or item.id
        if event.type == "response.output_item.added":
            has_answered = self._run.has_answered
            self._run.open_call(call_id, tool, getattr(item, "arguments", None) or "")
            self._run.has_answered = has_answered  # The model goes on with the same reply.
        elif event.type == "response.output_item.done":
            output = getattr(item, "output", None) or getattr(item, "results", None) or getattr(item, "action", None)
            self._run.close_call(call_id, output, failed=item.status == "failed")


def _name(model: Model) -> str:
    return str(getattr(model, "model", type(model).__name__))


def _with_recorded_chunks(
    model: OpenAIChatCompletionsModel, run: Run, reader: ChatReader
) -> OpenAIChatCompletionsModel:
    """Return a copy of the model that records chunks before the SDK reads them and drops the finish reason."""
    recorded = copy.copy(model)
    fetch: Any = model._fetch_response  # pyright: ignore[reportPrivateUsage]

    async def fetch_and_read(*args: Any, **options: Any) -> Any:
        response, stream = await fetch(*args, **options)
        return response, _Stream(stream, _record(stream, run, reader))

    recorded._fetch_response = fetch_and_read  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return recorded


class _Stream:
    """The client's stream, with its chunks replaced by the recorded ones."""

    def __init__(self, stream: Any, chunks: AsyncGenerator[Any]) -> None:
        self._stream = stream
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._chunks

    async def aclose(self) -> None:
        await self._chunks.aclose()
        await self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


async def _record(stream: Any, run: Run, reader: ChatReader | ResponsesReader) -> AsyncGenerator[Any]:
    """Record a model's stream and pass it on. Raises ModelError at its end if the reply is truncated."""
    has_ended = False
    is_chat = isinstance(reader, ChatReader)
    try:
        async for chunk in stream:
            if is_chat and (text := _text_alone(chunk)):
                run.read(text)
            else:
                for piece in reader.read(chunk.to_dict()):
                    run.read(piece)
            if not is_chat and chunk.type in _ENDINGS:
                has_ended = True
                _end(run, reader)
            await run.queue.wait_for_room()
            yield chunk
    except BaseException as error:
        if not has_ended:
            # Stopped or broken off: record the usage so far, where the server reports it while streaming.
            with suppress(ModelError):
                _end(run, reader)
        # After the finish reason the reply is whole, so a lost connection changes nothing.
        if not (reader.finished and isinstance(error, openai.APIConnectionError)):
            raise
        has_ended = True
    if not has_ended:
        _end(run, reader)


def _text_alone(chunk: Any) -> str | None:
    """Return the text of a chat chunk that has nothing else; nearly every chunk is one."""
    choices = chunk.choices
    if not choices or len(choices) > 1 or chunk.usage or choices[0].finish_reason:
        return None
    delta = choices[0].delta
    if delta is None or delta.tool_calls or delta.refusal or delta.model_extra:
        return None
    return delta.content


def _end(run: Run, reader: ChatReader | ResponsesReader) -> None:
    for piece in reader.end():
        run.read(piece)
