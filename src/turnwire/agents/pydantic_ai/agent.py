"""The agent: one turn is one run of the SDK, or several with approvals between them."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

from pydantic_ai import DeferredToolRequests, PartDeltaEvent, TextPartDelta
from pydantic_ai.agent import AbstractAgent, WrapperAgent

from turnwire.agents.pydantic_ai.approvals import resume_run, suspend_run
from turnwire.agents.pydantic_ai.errors import explain_failure
from turnwire.agents.pydantic_ai.events import RunListener
from turnwire.agents.pydantic_ai.messages import sdk_messages
from turnwire.agents.pydantic_ai.runner import install_runner
from turnwire.core.events import Event
from turnwire.core.turns import Turn


class PydanticAIAgent:
    """A Pydantic AI agent as an agent of ours.

    `run_options` go to the SDK's `run_stream_events`: `deps`, `usage_limits`, `model_settings` and so on. `to_deps`
    returns the dependencies of each turn, for tools that need to know the caller.
    """

    def __init__(
        self, agent: AbstractAgent[Any, Any], *, to_deps: Callable[[Turn], Any] | None = None, **run_options: Any
    ) -> None:
        install_runner()
        self._agent = agent
        self._to_deps = to_deps
        self._capabilities: Sequence[Any] = run_options.pop("capabilities", None) or ()
        self._options = run_options
        if not _has_validators(agent):
            output_type: Any = run_options.get("output_type") or agent.output_type
            self._options["output_type"] = _with_requests(output_type)

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
        prompt: str | None = turn.message
        if turn.resumption is not None:
            prompt = None
            options |= resume_run(turn.resumption, listener)
        try:
            # Leaving the context, also by cancellation, stops the run and closes the connection to the model's server.
            async with self._agent.run_stream_events(prompt, **options) as events:
                async for event in events:
                    if listener.has_pending:
                        for pending in listener.take_pending():
                            yield pending
                    if (
                        isinstance(event, PartDeltaEvent)
                        and isinstance(event.delta, TextPartDelta)
                        and listener.is_within_reply
                    ):
                        # The fast path: nearly every event is a piece of text.
                        yield event.delta.content_delta
                    else:
                        for converted in listener.convert(event):
                            yield converted
                    listener.note_read()
        except Exception as error:
            for pending in listener.take_pending():
                yield pending
            failure = explain_failure(error)
            if failure is error:
                raise
            raise failure from error
        if listener.deferred is not None:
            raise suspend_run(listener.deferred, has_text=listener.has_text)


def _with_requests(output_type: Any) -> list[Any]:
    """Add `DeferredToolRequests` to the output types: the SDK defers a tool only if the output may be one."""
    is_list = isinstance(output_type, list | tuple)
    outputs = list(cast("list[Any]", output_type)) if is_list else [output_type]
    return outputs if DeferredToolRequests in outputs else [*outputs, DeferredToolRequests]


def _has_validators(agent: AbstractAgent[Any, Any]) -> bool:
    """Return True if the agent has output validators: the SDK then refuses an output type of the run's own."""
    while isinstance(agent, WrapperAgent):
        agent = agent.wrapped
    return bool(getattr(agent, "_output_validators", ()))
