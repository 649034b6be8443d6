"""A log in short, made of what is left of a turn whose events are gone: enough to tell its response again."""

from collections.abc import Iterator

from turnwire.core.events import (
    DoneEvent,
    Event,
    MessageEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.logged import LoggedEvent, log_event
from turnwire.core.turns import TurnState


def retold(state: TurnState, began: int, ended: int) -> Iterator[LoggedEvent]:
    """Of an ended turn; times are in milliseconds."""
    for position, event in enumerate(_events(state), 1):
        logged = log_event(event, position, 0)
        logged.at = began if position <= 2 else ended
        yield logged


def _events(state: TurnState) -> Iterator[Event]:
    yield SessionEvent(state.session_id, state.turn_id, state.agent)
    yield MessageEvent(state.message, "", "")
    told = 0
    for step in state.steps:
        if step.kind != "tool":
            continue
        yield TokenEvent(state.text[told : step.answer_offset])
        told = step.answer_offset
        yield ToolCallEvent(step.id, step.name, step.args or {}, agent_path=step.agent_path)
        if step.state in ("succeeded", "failed"):
            succeeded = step.state == "succeeded"
            yield ToolResultEvent(step.id, step.name, succeeded, step.result, agent_path=step.agent_path)
    yield TokenEvent(state.text[told:])
    yield from state.citations
    if usage := state.usage:
        yield UsageEvent(
            None, usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.reasoning_tokens
        )
    if state.error is not None:
        yield state.error
    yield DoneEvent(state.outcome or "interrupted", state.session_id, state.turn_id)
