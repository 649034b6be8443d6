"""Recording of the runs that a turn's tools start: agents as tools, and a `Runner` in a tool.

The SDK has no hook for a run that another run starts, so `Runner.run_async` is wrapped: every run inside a turn gets
a plugin that records it. Runs outside a turn are left unchanged.
"""

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage]
from google.adk.runners import Runner

from turnwire.agents.agent_paths import leave_agent
from turnwire.agents.event_queue import enter_run
from turnwire.agents.google_adk.events import RunPlugin, current_caller
from turnwire.core.errors import AgentError
from turnwire.core.log.emit import is_in_turn

_WRAPPED = "turnwire_wrapped"


def install_runner() -> None:
    """Wrap `Runner.run_async`, once. Raises RuntimeError for a version of the SDK whose runs do not go through it."""
    inner: Any = getattr(Runner, "run_async", None)
    if inner is None:
        raise RuntimeError("this version of google-adk has no Runner.run_async; install the version in constraints.txt")
    if hasattr(inner, _WRAPPED):
        return

    @functools.wraps(inner)
    async def run_recorded(runner: Runner, **options: Any) -> AsyncGenerator[Any]:
        plugins = runner.plugin_manager.plugins
        is_recorded = any(isinstance(plugin, RunPlugin) and plugin.runner is runner for plugin in plugins)
        events = inner(runner, **options) if is_recorded or not is_in_turn() else _sub_run(runner, inner, options)
        async with aclosing(events):
            async for event in events:
                yield event

    setattr(run_recorded, _WRAPPED, inner)
    Runner.run_async = run_recorded  # type: ignore[method-assign]


async def _sub_run(runner: Runner, inner: Any, options: dict[str, Any]) -> AsyncGenerator[Any]:
    """Run an agent with its own plugin, which replaces the plugin of the run that has started this one."""
    plugin = RunPlugin(*enter_run(current_caller(), runner.agent.name))
    config: RunConfig = options.pop("run_config", None) or RunConfig()
    is_streamed = config.streaming_mode == StreamingMode.SSE
    streaming = config.model_copy(update={"streaming_mode": StreamingMode.SSE})
    try:
        async with aclosing(inner(plugin.attach(runner), run_config=streaming, **options)) as events:
            async for event in events:
                plugin.read(event)
                if is_streamed or not event.partial:
                    yield event
        if plugin.pending:
            raise AgentError(
                f"the agent {runner.agent.name!r} needs an approval in a run of its own, which the SDK cannot "
                "continue; give its tools to the agent of the turn, or make it one of that agent's `sub_agents`"
            )
    finally:
        plugin.leave_branches()
        leave_agent(plugin.path)
