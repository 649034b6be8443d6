"""Recording of the runs that a turn's tools start, such as `await other.run(...)` in a tool.

The SDK has no hook for a run that another run starts, so `Agent.iter`, through which every run goes, is wrapped. Runs
outside a turn are left unchanged.
"""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from pydantic_ai import Agent, TextOutput
from pydantic_ai.capabilities import UseThreadExecutor

from turnwire.agents.pydantic_ai.events import RunListener
from turnwire.agents.sdk_internals import wrap
from turnwire.core.log.emit import is_in_turn
from turnwire.tools.threads import TOOL_THREADS

_SDK = "pydantic-ai-slim"
# The SDK's own threads have no bound for each turn, and a cancelled run waits for them.
_THREADS = UseThreadExecutor(TOOL_THREADS, id="turnwire-threads")


def install_runner() -> None:
    """Wrap `Agent.iter`, once. Raises RuntimeError for a version of the SDK whose internals differ."""
    wrap(_SDK, Agent, "_output_validators")
    wrap(_SDK, Agent, "iter", "self, user_prompt, capabilities", _record_runs)


def _record_runs(inner: Any) -> Any:
    @asynccontextmanager
    async def iter_recorded(agent: Agent[Any, Any], *args: Any, **options: Any) -> AsyncGenerator[Any]:
        capabilities: Sequence[Any] = options.pop("capabilities", None) or ()
        writes_text = _is_text(options.get("output_type") or agent.output_type)
        with _listening(agent, capabilities, writes_text) as extended:
            async with inner(agent, *args, capabilities=extended, **options) as run:
                yield run

    return iter_recorded


@contextmanager
def _listening(agent: Agent[Any, Any], capabilities: Sequence[Any], writes_text: bool) -> Generator[Sequence[Any]]:
    """Yield the capabilities of a run, with a listener and threads if it belongs to a turn."""
    own = next((item for item in capabilities if isinstance(item, RunListener)), None)
    if own is None and not is_in_turn():
        yield capabilities
        return
    listener = own or RunListener.nested(agent.name or "agent")
    if own is None:
        # A value is for the code that has started the run, not for people.
        listener.hides_text = not writes_text
        capabilities = [*capabilities, listener]
    try:
        with listener.entered():
            # First, so that an executor that the application has chosen takes precedence.
            yield [_THREADS, *capabilities]
    finally:
        if own is None:
            listener.leave()


def _is_text(output_type: Any) -> bool:
    """Return True if a run with these output types may answer in text, not only with a value."""
    outputs = cast("Sequence[Any]", output_type) if isinstance(output_type, list | tuple) else [output_type]
    return any(output is str or isinstance(output, TextOutput) for output in outputs)
