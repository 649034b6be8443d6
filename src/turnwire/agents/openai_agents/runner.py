"""The runs that the tools of a turn make: they become part of the turn, whoever starts them.

An agent that is used as a tool, or asked with `Runner.run` from inside one, is run by the SDK's default runner. The one
here stands before it. It does nothing to runs that are not made inside a turn of ours.
"""

import asyncio
import dataclasses
from contextvars import ContextVar
from functools import partial
from typing import Any

from agents import Agent, RunConfig, RunResultStreaming
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.tool_context import ToolContext

from turnwire.agents.openai_agents.errors import explained
from turnwire.agents.openai_agents.events import Hooks, Run, error_formatter, read_item, told_of
from turnwire.agents.openai_agents.model import WatchedModel

_running: ContextVar[Run | None] = ContextVar("turnwire_openai_agents_run", default=None)


class TurnAgentRunner(AgentRunner):
    """Passes everything on to `inner`; what is run inside a turn is watched."""

    def __init__(self, inner: AgentRunner) -> None:
        self.inner = inner

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        outer = running_run()
        if outer is None:
            return await self.inner.run(starting_agent, input, **options)
        # Streamed, so that what a sub-agent says is told while it says it.
        run = outer.inside(starting_agent.name)
        result = start_run(self.inner, run, starting_agent, input, options)
        try:
            async for event in result.stream_events():
                read_item(run, event)
        except BaseException as error:
            result.cancel()
            if isinstance(error, Exception) and isinstance(context := options.get("context"), ToolContext):
                # An agent as a tool: what it raises is read by the model that asked for it.
                error = explained(error, run.model_failure)
                outer.fail_call(context.tool_call_id, told_of(context.tool_name, error))
            raise error
        return result

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        return self.inner.run_sync(starting_agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResultStreaming:
        outer = running_run()
        if outer is None:
            return self.inner.run_streamed(starting_agent, input, **options)
        run = outer.inside(starting_agent.name)
        result = start_run(self.inner, run, starting_agent, input, options)
        if isinstance(context := options.get("context"), ToolContext) and result.run_loop_task is not None:
            result.run_loop_task.add_done_callback(partial(_note_failure, outer, run, context))
        return result


def _note_failure(outer: Run, run: Run, context: ToolContext[Any], ended: asyncio.Task[Any]) -> None:
    """A run that somebody else reads has ended."""
    if not ended.cancelled() and isinstance(error := ended.exception(), Exception):
        outer.fail_call(context.tool_call_id, told_of(context.tool_name, explained(error, run.model_failure)))


def install_runner() -> AgentRunner:
    """Puts it before the SDK's default runner, once. Returns the one behind it."""
    runner = get_default_agent_runner()
    if not isinstance(runner, TurnAgentRunner):
        runner = TurnAgentRunner(runner)
        set_default_agent_runner(runner)
    return runner.inner


def start_run(
    runner: AgentRunner, run: Run, agent: Agent[Any], input: Any, options: dict[str, Any]
) -> RunResultStreaming:
    """Starts a run that is told. It must be read to its end, or cancelled."""
    hooks = Hooks(run, options.get("hooks"))
    config: RunConfig | dict[str, Any] = options.get("run_config") or RunConfig()
    if isinstance(config, dict):
        config = RunConfig(**config)
    if isinstance(config.model, WatchedModel):
        config = config.model.config  # An agent as a tool is given the configuration of the run around it.
    watched = dataclasses.replace(
        config,
        model=WatchedModel(run, hooks, config),
        tool_error_formatter=error_formatter(run, config.tool_error_formatter),
    )
    given: dict[str, Any] = {**options, "hooks": hooks, "run_config": watched}
    token = _running.set(run)
    try:
        return runner.run_streamed(agent, input, **given)
    finally:
        _running.reset(token)


def running_run() -> Run | None:
    """The run that is going on here, if what is done here can be part of it."""
    run = _running.get()
    # A tool's thread may have an event loop of its own, from which the turn's must not be touched.
    if run is None or run.outbox.loop is not asyncio.get_running_loop():
        return None
    return run
