"""The agent: one turn is one run of the SDK, which is repeated from its journal after a wait or a crash."""

import asyncio
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Unpack

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    RunHooks,
    RunResultStreaming,
    Session,
)
from agents.models.multi_provider import MultiProvider
from openai import AsyncOpenAI

from turnwire.agents.context_changes import ContextChanges
from turnwire.agents.event_queue import EventQueue, explaining
from turnwire.agents.openai_agents.approvals import decide_calls
from turnwire.agents.openai_agents.errors import explain_failure
from turnwire.agents.openai_agents.events import Run, read_item
from turnwire.agents.openai_agents.internals import has_default_key
from turnwire.agents.openai_agents.memory import ContinuedSession, open_session
from turnwire.agents.openai_agents.messages import sdk_messages
from turnwire.agents.openai_agents.options import declared_schema
from turnwire.agents.openai_agents.runner import install_runner, start_run
from turnwire.agents.openai_agents.tools import install_client_tools
from turnwire.agents.run_recorder import answer_text
from turnwire.agents.sdk_agent import SdkAgent, SdkAgentOptions
from turnwire.core.log.files import load_turn_files, user_message
from turnwire.core.log.model_options import OPTION_NAMES
from turnwire.core.log.turns import Message, Turn
from turnwire.models.address import ModelAddress

_CLEAN_UP_SECONDS = 3.0


class OpenAIAgentsAgent(SdkAgent):
    """A Turnwire agent that runs an agent of the SDK, with at most `max_turns` model calls.

    `session` returns the SDK's own memory for a turn; without it the agent gets the turn's history. `context` returns
    the context that tools find in their `RunContextWrapper`, again after each wait; without it the context is the turn,
    to which tools may add attributes. `save_context` is called with it when the turn ends or waits. Both may be async.
    A turn begins with the agent that the conversation was handed over to, or with the first one if `keeps_last_agent`
    is false. Tracing is off unless `tracing` is true, because the SDK sends traces to OpenAI's service. The other
    options are those of `SdkAgent`, but `editable` has no effect: an approval of the SDK has no arguments.
    """

    takes_model = True

    def __init__(
        self,
        agent: Agent[Any],
        *,
        max_turns: int | None = 10,
        tracing: bool = False,
        session: Callable[[Turn], Session] | None = None,
        context: Callable[[Turn], Any] | None = None,
        save_context: Callable[[Turn, Any], Any] | None = None,
        keeps_last_agent: bool = True,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
        **options: Unpack[SdkAgentOptions],
    ) -> None:
        self._runner = install_runner()
        install_client_tools()
        self._agent = agent
        self._max_turns = max_turns
        self._session = session
        self._context = context
        self._save_context = save_context
        self._keeps_last_agent = keeps_last_agent
        self._hooks = hooks
        # As with our other agents, a request for an unknown tool is answered with an error, and the run continues.
        config = run_config or RunConfig(tool_not_found_behavior="return_error_to_model")
        self._config = replace(config, tracing_disabled=not tracing)
        super().__init__(self._possible_options(), **options)

    @property
    def tool_names(self) -> frozenset[str]:
        """Return the names of the tools of all agents that a turn may be handed to."""
        return frozenset(tool.name for agent in reachable_agents(self._agent) for tool in agent.tools)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the agent's output type; None if it answers with text."""
        return declared_schema(self._agent)

    def _possible_options(self) -> list[str]:
        """Return the model options that the agents of a turn can be run with."""
        agents = list(reachable_agents(self._agent))
        models = [self._config.model or agent.model for agent in agents]
        has_stop = all(isinstance(model, OpenAIChatCompletionsModel) for model in models)
        # A model of another kind may ignore the format silently.
        kinds = (OpenAIChatCompletionsModel, OpenAIResponsesModel, str, type(None))
        has_format = all(isinstance(model, kinds) for model in models) and not any(map(declared_schema, agents))
        impossible = {"stop": not has_stop, "response_format": not has_format}
        return [name for name in OPTION_NAMES if not impossible.get(name)]

    def find_problems(self) -> list[str]:
        """Return what is missing: the SDK finds out at its first request that there is no key."""
        if self._config.model is not None or type(self._config.model_provider) is not MultiProvider:
            return []
        has_key = os.environ.get("OPENAI_API_KEY") or has_default_key()
        name = next((agent.name for agent in reachable_agents(self._agent) if _uses_openai(agent)), None)
        if has_key or name is None:
            return []
        return [f"the agent {name!r} calls OpenAI's service, and there is no key; set OPENAI_API_KEY"]

    def with_model(self, address: ModelAddress) -> "OpenAIAgentsAgent":
        """Return the same agent with another model, which all agents of its runs use."""
        agent = copy(self)
        client = AsyncOpenAI(base_url=address.url, api_key=address.key or "none")
        agent._config = replace(self._config, model=OpenAIChatCompletionsModel(address.name, client))
        return agent

    async def _run(self, turn: Turn, queue: EventQueue) -> None:
        run = Run(queue)
        self._prepare(run, turn)
        context = await self._make_context(turn)
        queue.changes = ContextChanges(context)
        result: RunResultStreaming | None = None

        def explain(error: Exception) -> Exception:
            failure = explain_failure(error, run)
            run.close_calls(failure)
            return failure

        try:
            if self._session is not None:
                run.session = await open_session(self._session(turn), turn, run)
            options = self._run_options(turn, run, context)
            agent, items = await self._conversation(turn)
            result = start_run(self._runner, run, agent, items, {**options, "max_turns": self._max_turns})
            with explaining(explain):
                await _read(result, run)
                while result.interruptions:
                    state = await decide_calls(result, run)
                    result = start_run(self._runner, run, self._agent, state, options)
                    await _read(result, run)
                _finish(result, run)
            if isinstance(run.session, ContinuedSession):
                await run.session.finish()
        finally:
            if result is not None:
                await _stop(result)
            if self._save_context is not None:
                await _result_of(self._save_context(turn, context))

    async def _make_context(self, turn: Turn) -> Any:
        if self._context is not None:
            return await _result_of(self._context(turn))
        return _TurnContext(**{name: getattr(turn, name) for name in Turn.__struct_fields__})

    def _run_options(self, turn: Turn, run: Run, context: Any) -> dict[str, Any]:
        """Return the options of the SDK's runner."""
        config = self._config
        if turn.options.get("model"):
            config = replace(config, model=_named_model(config.model or self._agent.model, turn.options["model"]))
        options: dict[str, Any] = {"context": context, "hooks": self._hooks, "run_config": config}
        return options if run.session is None else {**options, "session": run.session}

    async def _conversation(self, turn: Turn) -> tuple[Agent[Any], list[Any]]:
        """Return the agent that the turn begins with, and the conversation that it gets."""
        files = await load_turn_files(turn)
        history = sdk_messages(turn.history, files) if self._session is None else []
        message = sdk_messages([user_message(turn)], files)
        agent = last_agent(self._agent, turn.history) if self._keeps_last_agent else self._agent
        return agent, [*history, *message, *sdk_messages(turn.progress)]


def _uses_openai(agent: Agent[Any]) -> bool:
    """Return True if the SDK's default provider sends the agent's requests to OpenAI."""
    return agent.model is None or (
        isinstance(agent.model, str) and agent.model.partition("/")[0] in (agent.model, "openai")
    )


def _named_model(model: Model | str | None, name: str) -> Model | str:
    """Return the model of this name: of the same client, if the agent has one of its own."""
    if not isinstance(model, OpenAIChatCompletionsModel | OpenAIResponsesModel):
        return name
    named = copy(model)
    named.model = name
    return named


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _TurnContext(Turn, frozen=False, dict=True, kw_only=True):  # pyright: ignore[reportGeneralTypeIssues]
    """The default context: the turn, with room for what tools want to keep in it."""


async def _read(result: RunResultStreaming, run: Run) -> None:
    """Read the SDK's stream to its end. Most of what it reports is in the log already, from the model and the hooks."""
    async for event in result.stream_events():
        read_item(run, event)


def _finish(result: RunResultStreaming, run: Run) -> None:
    """Write an output that was made by a tool or a function: the model streams its own text."""
    if result.final_output not in (None, "") and not run.has_answered:
        run.write(answer_text(result.final_output))


async def _stop(result: RunResultStreaming) -> None:
    """Stop what still runs: the request to the model's server, and the tools."""
    if result.run_loop_task is None:
        return
    if not result.run_loop_task.done():
        result.cancel()
    # Collect the exception of the cancelled task, or asyncio logs it as never retrieved.
    tasks = asyncio.gather(result.run_loop_task, return_exceptions=True)
    await asyncio.wait({tasks}, timeout=_CLEAN_UP_SECONDS)


def last_agent(first: Agent[Any], history: Sequence[Message]) -> Agent[Any]:
    """Return the agent of the last handoff in the history, or the first one if it cannot be reached any more."""
    name = next((message.agent for message in reversed(history) if message.agent is not None), None)
    return next((agent for agent in reachable_agents(first) if agent.name == name), first)


def reachable_agents(first: Agent[Any]) -> Iterator[Agent[Any]]:
    """Yield an agent and those that a conversation can be handed over to from there."""
    pending, seen = [first], {id(first)}
    while pending:
        agent = pending.pop(0)
        yield agent
        for handoff in agent.handoffs:
            target: Any = handoff if isinstance(handoff, Agent) else _target(handoff)
            if target is not None and id(target) not in seen:
                seen.add(id(target))
                pending.append(target)


def _target(handoff: Any) -> Any:
    # The SDK keeps only a weak reference to the agent of a `handoff(...)`, which has no public name.
    reference = handoff._agent_ref
    return reference() if reference is not None else None
