"""Reads along with whatever model an agent asks, by the rules that our own client goes by.

What is told comes from here and not from the SDK's stream, because here it comes before the tools that the model asks
for, and because here an answer that is not whole can still be refused.
"""

import copy
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import openai
from agents import Model, ModelSettings, RunConfig
from agents.models import get_default_model_settings
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel

from turnwire.agents.openai_agents.events import Hooks, ModelFailure, Run
from turnwire.core.errors import ModelError
from turnwire.models.chat_completions import ChatReader
from turnwire.models.responses import ResponsesReader

_ENDINGS = ("response.completed", "response.incomplete")
# Tools that run at the provider, so that no hook tells of them.
_HOSTED = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")
# A chunk that is not JSON, not UTF-8, or not a chunk comes as some ValueError.
_FAILURES = (openai.OpenAIError, ValueError)


class WatchedModel(Model):
    """Stands in for all models of a run, and asks the one that `config` or the agent names."""

    def __init__(self, run: Run, hooks: Hooks, config: RunConfig) -> None:
        self.config = config
        self._run = run
        self._hooks = hooks
        self._asked: list[Model] = []

    async def get_response(self, *args: Any, **options: Any) -> Any:
        # All our runs are streamed, but the interface has this too.
        model, _ = self._find()
        return await model.get_response(*args, **options)

    async def stream_response(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *args: Any, **options: Any
    ) -> AsyncGenerator[Any]:
        model, implied = self._find()
        settings = implied.resolve(model_settings)
        name = str(getattr(model, "model", type(model).__name__))
        reading_along = isinstance(model, OpenAIChatCompletionsModel)
        if reading_along:
            if settings.include_usage is None:
                settings = settings.resolve(ModelSettings(include_usage=True))
            model = _reading_along(model, self._run, ChatReader(name))
        sent: Any = model.stream_response(system_instructions, input, settings, *args, **options)
        read = sent if reading_along else _read(sent, self._run, ResponsesReader(name))
        try:
            async with aclosing(sent), aclosing(read):
                async for event in read:
                    self._tell_hosted(event)
                    yield event
        except _FAILURES as error:
            self._run.model_failure = ModelFailure(error, name)
            raise

    def get_retry_advice(self, request: Any) -> Any:
        return self._asked[-1].get_retry_advice(request) if self._asked else None

    async def _cleanup_on_run_end(self, owner: object) -> None:
        for model in self._asked:
            await model._cleanup_on_run_end(owner)  # pyright: ignore[reportPrivateUsage]

    def _find(self) -> tuple[Model, ModelSettings]:
        """The agent's model, as the SDK finds it, and the settings that its name implies."""
        agent = self._hooks.agent
        wanted = self.config.model or (agent and agent.model)
        model = wanted if isinstance(wanted, Model) else self.config.model_provider.get_model(wanted)
        if model not in self._asked:
            self._asked.append(model)
        return model, self._implied_settings()

    def _implied_settings(self) -> ModelSettings:
        # The SDK takes them back when it sees a model and no name, which we have made it see.
        agent = self._hooks.agent
        if agent is None or self.config.model is not None or isinstance(agent.model, Model):
            return ModelSettings()
        implied = get_default_model_settings(agent.model)
        return implied if agent.model_settings == implied else ModelSettings()

    def _tell_hosted(self, event: Any) -> None:
        item: Any = getattr(event, "item", None)
        if getattr(item, "type", None) not in _HOSTED:
            return
        tool = getattr(item, "name", None) or item.type.removesuffix("_call")
        # One that a person has allowed was told when it was asked for.
        call_id = getattr(item, "approval_request_id", None) or item.id
        if event.type == "response.output_item.added":
            self._run.begin_call(call_id, tool, getattr(item, "arguments", None) or "")
        elif event.type == "response.output_item.done":
            found = getattr(item, "output", None) or getattr(item, "results", None) or getattr(item, "action", None)
            self._run.end_call(call_id, found, failed=item.status == "failed")


def _reading_along(model: OpenAIChatCompletionsModel, run: Run, reader: ChatReader) -> OpenAIChatCompletionsModel:
    """The model, with its chunks read on their way to the SDK, which drops the finish reason."""
    watched = copy.copy(model)
    fetch: Any = model._fetch_response  # pyright: ignore[reportPrivateUsage]

    async def fetch_and_read(*args: Any, **options: Any) -> Any:
        response, stream = await fetch(*args, **options)
        return response, _Stream(stream, _read(stream, run, reader))

    watched._fetch_response = fetch_and_read  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    return watched


class _Stream:
    """A client's stream, with its chunks taken from elsewhere."""

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


async def _read(stream: Any, run: Run, reader: ChatReader | ResponsesReader) -> AsyncGenerator[Any]:
    """Passes on what a model sends, and tells it. Raises ModelError where it ends, if it is not whole."""
    has_ended = False
    try:
        async for sent in stream:
            for piece in reader.read(sent.to_dict()):
                run.read(piece)
            if getattr(sent, "type", None) in _ENDINGS:
                has_ended = True
                _end(run, reader)
            await run.outbox.room()
            yield sent
    except BaseException as error:
        if not has_ended:
            # Whether it was stopped or broke off: what it cost so far, where the server counts along, is told.
            with suppress(ModelError):
                _end(run, reader)
        # Once the model has said that it is finished, its answer is whole: a lost line costs nothing.
        if not (reader.finished and isinstance(error, openai.APIConnectionError)):
            raise
        has_ended = True
    if not has_ended:
        _end(run, reader)


def _end(run: Run, reader: ChatReader | ResponsesReader) -> None:
    for piece in reader.end():
        run.read(piece)
