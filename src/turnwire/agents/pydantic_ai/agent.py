"""One turn is one run of the SDK, or several with people's decisions in between."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

from pydantic_ai import DeferredToolRequests, PartDeltaEvent, TextPartDelta
from pydantic_ai.agent import AbstractAgent, WrapperAgent

from turnwire.agents.pydantic_ai.approvals import resumed, waiting
from turnwire.agents.pydantic_ai.errors import explain
from turnwire.agents.pydantic_ai.events import RunListener
from turnwire.agents.pydantic_ai.messages import sdk_messages
from turnwire.core.events import Event
from turnwire.core.turns import Turn


class PydanticAIAgent:
    """`run_options` are those of the SDK's `run_stream_events`: `deps`, `usage_limits`, `model_settings` and so on.

    `to_deps` makes the dependencies of each turn, for tools that must know who asks.
    """

    def __init__(
        self, agent: AbstractAgent[Any, Any], *, to_deps: Callable[[Turn], Any] | None = None, **run_options: Any
    ) -> None:
        self._agent = agent
        self._to_deps = to_deps
        self._capabilities: Sequence[Any] = run_options.pop("capabilities", None) or ()
        self._options = run_options
        if not _has_validators(agent):
            given: Any = run_options.get("output_type") or agent.output_type
            self._options["output_type"] = _or_requests(given)

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        listener = RunListener()
        options: dict[str, Any] = {
            "message_history": sdk_messages(turn.history),
            "conversation_id": turn.session_id,
            **self._options,
            "capabilities": [*self._capabilities, listener],
        }
        if self._to_deps is not None:
            options["deps"] = self._to_deps(turn)
        asked: str | None = turn.message
        if turn.resumption is not None:
            asked = None
            options |= resumed(turn.resumption)
        try:
            # Leaving it, also by a cancellation, stops the run and closes the connection to the model's server.
            async with self._agent.run_stream_events(asked, **options) as events:
                async for event in events:
                    if listener.has_heard:
                        for heard in listener.heard():
                            yield heard
                    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                        # Nearly every event is one.
                        yield event.delta.content_delta
                    else:
                        for told in listener.read(event):
                            yield told
        except Exception as error:
            for heard in listener.heard():
                yield heard
            explained = explain(error)
            if explained is None:
                raise
            raise explained from error
        if listener.deferring is not None:
            raise waiting(listener.deferring)


def _or_requests(output_type: Any) -> list[Any]:
    """A run may end in requests only if its output may be one."""
    several = isinstance(output_type, list | tuple)
    outputs = list(cast("list[Any]", output_type)) if several else [output_type]
    return outputs if DeferredToolRequests in outputs else [*outputs, DeferredToolRequests]


def _has_validators(agent: AbstractAgent[Any, Any]) -> bool:
    """The SDK does not let a run of such an agent have an output type of its own."""
    while isinstance(agent, WrapperAgent):
        agent = agent.wrapped
    return bool(getattr(agent, "_output_validators", ()))
