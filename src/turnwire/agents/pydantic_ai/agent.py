"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, cast

from pydantic_ai import DeferredToolRequests, TextOutput
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import merge_model_settings

from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.pydantic_ai.errors import explain_failure
from turnwire.agents.pydantic_ai.events import RunListener
from turnwire.agents.pydantic_ai.messages import prompt_of, sdk_messages
from turnwire.agents.pydantic_ai.options import has_stop, output_of, run_settings
from turnwire.agents.pydantic_ai.runner import install_runner
from turnwire.agents.pydantic_ai.tools import client_toolset, function_names
from turnwire.agents.sdk_agent import SdkAgent, split_options
from turnwire.core.log.files import LoadedFiles, load_turn_files, user_message
from turnwire.core.log.model_options import OPTION_NAMES
from turnwire.core.log.turns import Turn
from turnwire.models.address import ModelAddress


class PydanticAIAgent(SdkAgent):
    """A Turnwire agent that runs an agent of Pydantic AI.

    `to_deps` returns the dependencies of each turn, for tools that need to know the caller. Other options are those of
    `SdkAgent` and of the SDK's `run`: `deps`, `usage_limits`, `model_settings` and so on.
    """

    def __init__(
        self, agent: AbstractAgent[Any, Any], *, to_deps: Callable[[Turn], Any] | None = None, **options: Any
    ) -> None:
        install_runner()
        common, run_options = split_options(options)
        self._agent = agent
        self._to_deps = to_deps
        self._capabilities: Sequence[Any] = run_options.pop("capabilities", None) or ()
        self._options = run_options
        self.output_schema = _declared_schema(agent, run_options.get("output_type"))
        super().__init__(self._possible_options(), **common)

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

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        listener = RunListener(queue)
        self._prepare(listener, turn)
        with explaining(explain_failure):
            prompt, options = self._options_for(turn, listener, await load_turn_files(turn))
            result: AgentRunResult[Any] = await self._agent.run(prompt, **options)
            listener.read_result(result)

    def _options_for(self, turn: Turn, listener: RunListener, files: LoadedFiles) -> tuple[Any, dict[str, Any]]:
        options: dict[str, Any] = {
            "message_history": sdk_messages(turn.history, files),
            "conversation_id": turn.session_id,
            **self._options,
            "capabilities": [*self._capabilities, listener],
        }
        sent = listener.options
        if settings := run_settings(sent):
            options["model_settings"] = merge_model_settings(options.get("model_settings"), settings)
        if sent.instructions:
            own: Any = options.get("instructions") or ()
            options["instructions"] = [*(own if isinstance(own, list | tuple) else [own]), sent.instructions]
        if sent.response_format:
            options["output_type"] = output_of(sent.response_format)
        if listener.client_tools:
            options["toolsets"] = [*(options.get("toolsets") or ()), client_toolset(listener.client_tools)]
        if self._to_deps is not None:
            options["deps"] = self._to_deps(turn)
            listener.queue.changes = ContextChanges(options["deps"])
        message = user_message(turn)
        if turn.progress:
            return None, options | {"message_history": sdk_messages([*turn.history, message, *turn.progress], files)}
        return prompt_of(message, files), options


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
