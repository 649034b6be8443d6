"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

from pydantic_ai import AgentStreamEvent, DeferredToolRequests, TextOutput
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import merge_model_settings

from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.event_queue import EventQueue, explaining, run_events
from turnwire.agents.pydantic_ai.errors import explain_failure
from turnwire.agents.pydantic_ai.events import RunListener
from turnwire.agents.pydantic_ai.messages import prompt_of, sdk_messages
from turnwire.agents.pydantic_ai.options import has_stop, output_of, run_settings
from turnwire.agents.pydantic_ai.runner import install_runner
from turnwire.agents.pydantic_ai.tools import client_toolset, function_names
from turnwire.core.contracts.agents import OnCrash, OnDivergence
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.events import Event
from turnwire.core.log.files import MODEL_FILE_TYPES, LoadedFiles, load_turn_files, user_message
from turnwire.core.log.model_options import OPTION_NAMES, SAFE_OPTIONS, ModelOptions, chosen_options
from turnwire.core.log.turns import Turn
from turnwire.models.address import ModelAddress


class PydanticAIAgent:
    """A Turnwire agent that runs an agent of Pydantic AI.

    `run_options` go to the SDK's `run`: `deps`, `usage_limits`, `model_settings` and so on. `to_deps` returns the
    dependencies of each turn, for tools that need to know the caller.

    A turn whose worker was lost continues from its journal, unless `on_crash="close"`. `idempotent` names the tools
    that may run again if they break off. If the agent has changed meanwhile, the turn fails, or with
    `on_divergence="continue"` it goes on from its last finished tools. `editable` names the tools whose arguments a
    person may change when approving a call. `takes_attachments` are the media types of files that the model can read.
    `takes_model_options` are the names of the model options that clients may send (see `core.log.model_options`), by
    default all but `instructions`; agents that tools run do not get them.
    """

    journal = True
    takes_client_tools = True

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        *,
        to_deps: Callable[[Turn], Any] | None = None,
        on_crash: OnCrash = "resume",
        on_divergence: OnDivergence = "end",
        idempotent: Collection[str] = (),
        editable: Collection[str] = (),
        takes_attachments: bool | Sequence[str] = MODEL_FILE_TYPES,
        takes_model_options: bool | Collection[str] = SAFE_OPTIONS,
        **run_options: Any,
    ) -> None:
        install_runner()
        self.on_crash: OnCrash = on_crash
        self.on_divergence: OnDivergence = on_divergence
        self.takes_attachments = takes_attachments
        self._idempotent = frozenset(idempotent)
        self._editable = frozenset(editable)
        self._agent = agent
        self._to_deps = to_deps
        self._capabilities: Sequence[Any] = run_options.pop("capabilities", None) or ()
        self._options = run_options
        self.output_schema = _declared_schema(agent, run_options.get("output_type"))
        self.takes_model_options = chosen_options(takes_model_options, self._possible_options())

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the agent's own functions; those of other toolsets are known when it runs."""
        return function_names(self._agent)

    def _possible_options(self) -> list[str]:
        """Return the model options that the agent can be run with."""
        is_fixed = callable(self._options.get("model_settings"))
        impossible = {
            "stop": is_fixed or not has_stop(self._options.get("model") or self._agent.model),
            "temperature": is_fixed,
            "top_p": is_fixed,
            "max_tokens": is_fixed,
            # An output type of the run replaces the agent's own, and the SDK refuses one beside output validators.
            "response_format": self.output_schema is not None or _has_validators(self._agent),
        }
        return [name for name in OPTION_NAMES if not impossible.get(name)]

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    def find_problems(self) -> list[str]:
        """Return what is missing: without dependencies, tools that use them fail."""
        kind: Any = getattr(self._agent, "deps_type", type(None))
        if kind in (type(None), None, object, Any) or self._to_deps is not None or "deps" in self._options:
            return []
        name = getattr(kind, "__name__", str(kind))
        return [
            f"the tools of the agent expect `deps` of type {name}, and get None; "
            "give PydanticAIAgent(agent, to_deps=lambda turn: ...)"
        ]

    def with_model(self, address: ModelAddress) -> "PydanticAIAgent":
        """Return the same agent with another model."""
        agent = copy(self)
        provider = OpenAIProvider(base_url=address.url, api_key=address.key or "none")
        agent._options = {**self._options, "model": OpenAIChatModel(address.name, provider=provider)}
        return agent

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return run_events(partial(self._run, turn))

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        place = queue.journal.place("run") if queue.journal else ""
        listener = RunListener(queue, place=place, editable=self._editable)
        with explaining(explain_failure):
            prompt, options = self._options_for(turn, listener, await load_turn_files(turn))

            async def read(context: Any, events: AsyncIterable[AgentStreamEvent]) -> None:
                async for _ in listener.read(events):
                    pass

            result: AgentRunResult[Any] = await self._agent.run(prompt, event_stream_handler=read, **options)
            listener.read_result(result)

    def _options_for(self, turn: Turn, listener: RunListener, files: LoadedFiles) -> tuple[Any, dict[str, Any]]:
        options: dict[str, Any] = {
            "message_history": sdk_messages(turn.history, files),
            "conversation_id": turn.session_id,
            **self._options,
            "capabilities": [*self._capabilities, listener],
        }
        self._add_model_options(turn.model_options, options, listener)
        if offered := client_tools(turn.options):
            options["toolsets"] = [*(options.get("toolsets") or ()), client_toolset(offered)]
        if self._to_deps is not None:
            options["deps"] = self._to_deps(turn)
            listener.queue.changes = ContextChanges(options["deps"])
        message = user_message(turn)
        if turn.progress:
            listener.has_text = any(step.role == "assistant" and step.content for step in turn.progress)
            return None, options | {"message_history": sdk_messages([*turn.history, message, *turn.progress], files)}
        return prompt_of(message, files), options

    def _add_model_options(self, sent: ModelOptions, options: dict[str, Any], listener: RunListener) -> None:
        listener.model_options = sent
        if settings := run_settings(sent):
            options["model_settings"] = merge_model_settings(options.get("model_settings"), settings)
        if sent.instructions:
            own: Any = options.get("instructions") or ()
            options["instructions"] = [*(own if isinstance(own, list | tuple) else [own]), sent.instructions]
        if sent.response_format and "response_format" in self.takes_model_options:
            options["output_type"] = output_of(sent.response_format)


def _declared_schema(agent: AbstractAgent[Any, Any], output_type: Any) -> dict[str, Any] | None:
    """Return the JSON schema of the values that an agent answers with; None if it may answer with text."""
    kinds: Any = output_type or agent.output_type
    outputs = cast("list[Any]", kinds) if isinstance(kinds, list | tuple) else [kinds]
    values = [kind for kind in outputs if kind is not DeferredToolRequests]
    if not values or any(kind is str or isinstance(kind, TextOutput) for kind in values):
        return None
    return agent.output_json_schema(values)


def _has_validators(agent: AbstractAgent[Any, Any]) -> bool:
    """Return True if the agent has output validators: the SDK then refuses an output type of the run's own."""
    while isinstance(agent, WrapperAgent):
        agent = agent.wrapped
    return bool(getattr(agent, "_output_validators", ()))
