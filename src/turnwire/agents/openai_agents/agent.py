"""The agent: one turn is one run of the SDK, or several with approvals between them."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import Any

from agents import Agent, RunConfig, RunHooks, RunResultStreaming, Session, TResponseInputItem
from pydantic_core import to_json

from turnwire.agents.openai_agents.approvals import resume_run, suspend_run
from turnwire.agents.openai_agents.errors import explain_failure
from turnwire.agents.openai_agents.events import EventQueue, Run, read_item
from turnwire.agents.openai_agents.handoffs import last_agent
from turnwire.agents.openai_agents.memory import align_session
from turnwire.agents.openai_agents.messages import sdk_messages
from turnwire.agents.openai_agents.runner import install_runner, start_run
from turnwire.core.approvals import WaitForApproval
from turnwire.core.contracts import OnCrash
from turnwire.core.errors import AgentError
from turnwire.core.events import Event
from turnwire.core.turns import Turn

_CLEAN_UP_SECONDS = 3.0


class OpenAIAgentsAgent:
    """An agent of the SDK as an agent of ours; it may call the model `max_turns` times.

    `session` returns the SDK's own memory for a turn; without it the agent gets the turn's history. `context` returns
    the context that tools find in their `RunContextWrapper`, again after each suspension; without it the context is the
    turn, to which tools may add attributes. `save_context` is called with it when the turn ends or is suspended. Both
    may be async. A turn begins with the agent that the conversation was handed over to, or with the first one if
    `keeps_last_agent` is false. Tracing is off unless `tracing` is true, because the SDK sends traces to OpenAI's
    service.

    A turn whose worker was lost continues from its journal, unless `on_crash="close"` or there is a `session`, which
    has the messages of the lost run already. `idempotent` names the tools that may run again if they break off.
    """

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
        on_crash: OnCrash | None = None,
        idempotent: Collection[str] = (),
    ) -> None:
        if on_crash == "resume" and session is not None:
            raise ValueError("an agent with a `session` cannot have on_crash='resume'; leave one of them out")
        self.journal = on_crash != "close" and session is None
        self.on_crash: OnCrash = "resume" if self.journal else "close"
        self._idempotent = frozenset(idempotent)
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
        self._runner = install_runner()

    def repeats(self, tool: str) -> bool:
        return tool in self._idempotent

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        run = Run(EventQueue())
        context = await self._make_context(turn)
        result = await self._start(turn, run, context)
        reading = asyncio.create_task(_read(result, run))
        try:
            async for event in run.queue.events():
                yield event
            await reading
        finally:
            run.queue.close()
            await _stop(result, reading)
            run.queue.release()
            if self._save_context is not None:
                await _result_of(self._save_context(turn, context))

    async def _make_context(self, turn: Turn) -> Any:
        if self._context is not None:
            return await _result_of(self._context(turn))
        return _TurnContext(**{name: getattr(turn, name) for name in Turn.__struct_fields__})

    async def _start(self, turn: Turn, run: Run, context: Any) -> RunResultStreaming:
        if turn.progress and turn.resumption is None:
            raise AgentError(
                "The answer was begun by an older version of the server; send the message again.",
                code="diverged",
                retryable=True,
            )
        options: dict[str, Any] = {"context": context, "hooks": self._hooks, "run_config": self._config}
        if self._session is not None:
            options["session"] = run.session = self._session(turn)
            if turn.resumption is None:
                await align_session(options["session"], turn)
        if turn.resumption is not None:
            state = await resume_run(self._agent, turn.resumption, context, run)
            return start_run(self._runner, run, self._agent, state, options)
        options["max_turns"] = self._max_turns
        history = sdk_messages(turn.history) if self._session is None else []
        message: TResponseInputItem = {"role": "user", "content": turn.message}
        agent = last_agent(self._agent, turn.history) if self._keeps_last_agent else self._agent
        return start_run(self._runner, run, agent, [*history, message], options)


async def _result_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class _TurnContext(Turn, frozen=False, dict=True, kw_only=True):  # pyright: ignore[reportGeneralTypeIssues]
    """The default context: the turn, with room for what tools want to keep in it."""


async def _read(result: RunResultStreaming, run: Run) -> None:
    """Read the SDK's stream to its end. Most of what it reports is in the log already, from the model and the hooks."""
    try:
        async for event in result.stream_events():
            read_item(run, event)
        if result.interruptions:
            raise suspend_run(result, run)
        # The model streams its own text; an output made by a tool or a function is not in the log yet.
        if result.final_output is not None and not run.has_answered:
            output = result.final_output
            run.add_text(output if isinstance(output, str) else to_json(output, serialize_unknown=True).decode())
    except WaitForApproval:
        raise
    except Exception as error:
        failure = explain_failure(error, run.model_failure)
        run.end_open_calls(failure)
        if failure is error:
            raise
        raise failure from error
    finally:
        run.queue.put(None)


async def _stop(result: RunResultStreaming, reading: asyncio.Task[None]) -> None:
    """Stop what still runs: the request to the model's server, and the tools."""
    if not reading.done():
        result.cancel()
        reading.cancel()
    # Collect the exceptions of the cancelled tasks, or asyncio logs them as never retrieved.
    tasks = asyncio.gather(*filter(None, (reading, result.run_loop_task)), return_exceptions=True)
    await asyncio.wait({tasks}, timeout=_CLEAN_UP_SECONDS)
