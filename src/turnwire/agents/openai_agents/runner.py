"""Runner that makes the runs started by a turn's tools part of the turn.

The SDK runs an agent that is used as a tool, or called with `Runner.run` inside one, with its default runner. This
runner wraps that default and leaves runs outside our turns unchanged.
"""

import asyncio
import dataclasses
from contextvars import ContextVar
from functools import partial
from typing import Any

from agents import Agent, RunConfig, RunResultStreaming
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from agents.tool_context import ToolContext

from turnwire.agents.openai_agents.errors import explain_failure
from turnwire.agents.openai_agents.events import Hooks, Run, error_formatter, failure_text, read_item
from turnwire.agents.openai_agents.model import WatchedModel

_running: ContextVar[Run | None] = ContextVar("turnwire_openai_agents_run", default=None)


class TurnAgentRunner(AgentRunner):
    """Wrapper of `inner` that records the runs inside a turn."""

    def __init__(self, inner: AgentRunner) -> None:
        self.inner = inner

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        outer = running_run()
        if outer is None:
            return await self.inner.run(starting_agent, input, **options)
        # Streamed, so that a sub-agent's text reaches the log while it is written.
        run = outer.inside(starting_agent.name)
        result = start_run(self.inner, run, starting_agent, input, options)
        try:
            async for event in result.stream_events():
                read_item(run, event)
        except BaseException as error:
            result.cancel()
            if isinstance(error, Exception) and isinstance(context := options.get("context"), ToolContext):
                # The calling model reads the error of an agent that is used as a tool.
                error = explain_failure(error, run.model_failure)
                outer.fail_call(context.tool_call_id, failure_text(context.tool_name, error))
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
    """Record the failure of a run that the application reads itself."""
    if not ended.cancelled() and isinstance(error := ended.exception(), Exception):
        outer.fail_call(
            context.tool_call_id, failure_text(context.tool_name, explain_failure(error, run.model_failure))
        )


def install_runner() -> AgentRunner:
    """Wrap the SDK's default runner, once, and return the wrapped one."""
    runner = get_default_agent_runner()
    if not isinstance(runner, TurnAgentRunner):
        runner = TurnAgentRunner(runner)
        set_default_agent_runner(runner)
    return runner.inner


def start_run(
    runner: AgentRunner, run: Run, agent: Agent[Any], input: Any, options: dict[str, Any]
) -> RunResultStreaming:
    """Start a recorded run. The caller must read it to its end or cancel it."""
    hooks = Hooks(run, options.get("hooks"))
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
    run_options: dict[str, Any] = {**options, "hooks": hooks, "run_config": recorded}
    token = _running.set(run)
    try:
        return runner.run_streamed(agent, input, **run_options)
    finally:
        _running.reset(token)


def running_run() -> Run | None:
    """Return the run of the current context, if its event loop is the running one."""
    run = _running.get()
    # A tool's thread may have its own event loop, from which the turn's queue must not be touched.
    if run is None or run.queue.loop is not asyncio.get_running_loop():
        return None
    return run
