"""Recording of the runs that a turn's tools start: agents as tools, and a `Runner` in a tool.

The SDK has no hook for a run that another run starts, so `Runner.run_async` is wrapped: every run inside a turn gets
a plugin that records it. Runs outside a turn are left unchanged.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.agents.run_config import RunConfig, StreamingMode  # pyright: ignore[reportPrivateImportUsage]
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import Runner

from turnwire.agents.google_adk.events import AdkBranch, RunPlugin
from turnwire.agents.sdk_internals import wrap
from turnwire.core.log.emit import is_in_turn

_SDK = "google-adk"


def install_runner() -> None:
    """Wrap `Runner.run_async`, once. Raises RuntimeError for a version of the SDK that differs."""
    wrap(_SDK, Runner, "run_async", "self, user_id, session_id, new_message, run_config", _record_run)
    wrap(_SDK, Runner, "plugin_manager")
    wrap(_SDK, PluginManager(), "plugins")
    find_use_threads()


def find_use_threads() -> Any:
    """Return the SDK's context manager that runs sync tools in given threads."""
    return wrap(_SDK, "google.adk.utils._sync_runner", "_use_executor_for_sync_callables", "executor")


def _record_run(inner: Any) -> Any:
    async def run_async(runner: Runner, **options: Any) -> AsyncGenerator[Any]:
        plugins = runner.plugin_manager.plugins
        is_recorded = any(isinstance(plugin, RunPlugin) and plugin.runner is runner for plugin in plugins)
        events = inner(runner, **options) if is_recorded or not is_in_turn() else _sub_run(runner, inner, options)
        async with aclosing(events):
            async for event in events:
                yield event

    return run_async


async def _sub_run(runner: Runner, inner: Any, options: dict[str, Any]) -> AsyncGenerator[Any]:
    """Run an agent with its own plugin, which replaces the plugin of the run that has started this one."""
    plugin = RunPlugin(AdkBranch.nested(runner.agent.name))
    config: RunConfig = options.pop("run_config", None) or RunConfig()
    is_streamed = config.streaming_mode == StreamingMode.SSE
    streaming = config.model_copy(update={"streaming_mode": StreamingMode.SSE})
    try:
        async with aclosing(inner(plugin.attach(runner), run_config=streaming, **options)) as events:
            async for event in events:
                plugin.read(event)
                if is_streamed or not event.partial:
                    yield event
    finally:
        plugin.leave_branches()
        plugin.main.leave()
