"""A turn's log as MCP progress messages, and its state as the result of a tool."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import Event, SessionEvent, TokenEvent
from turnwire.core.log.turns import TurnState
from turnwire.wires.progress import (
    approval_question,
    open_client_calls,
    open_questions,
    status_of,
    step_line,
    waiting_steps,
)

_STARTED = "turn "
_MAX_LINE = 500


class ProgressLine(Struct, frozen=True):
    """One progress notification: a position of the log, which only grows, and a text for a person."""

    position: int
    text: str


def progress_lines(events: Iterable[LoggedEvent]) -> Iterator[ProgressLine]:
    """Yield a line for each step of the log, and one for each run of tokens."""
    position, text = 0, ""
    for logged in events:
        event = logged.event
        if isinstance(event, TokenEvent) and not event.agent_path:  # Those of sub-agents are not in the answer.
            position, text = logged.position, text + event.content
            continue
        line = _step_line(event)
        if line is None:
            continue
        if text:
            yield ProgressLine(position, text)
            text = ""
        yield ProgressLine(logged.position, line if isinstance(event, SessionEvent) else line[:_MAX_LINE])
    if text:
        yield ProgressLine(position, text)


def turn_id_of(line: str) -> str | None:
    """Return the turn's id in the first line of progress; None for any other line."""
    words = line.split()
    return words[1] if line.startswith(_STARTED) and len(words) == 5 and words[2:4] == ["of", "session"] else None


def _step_line(event: Event) -> str | None:
    if isinstance(event, SessionEvent):
        return f"{_STARTED}{event.turn_id} of session {event.session_id}"
    return step_line(event)


def turn_content(state: TurnState) -> dict[str, Any]:
    """Return a turn as the structured content of a result."""
    content: dict[str, Any] = {
        "turn_id": state.turn_id,
        "session_id": state.session_id,
        "agent": state.agent,
        "status": status_of(state),
        "text": state.text,
        "citations": msgspec.to_builtins(state.citations),
        "approvals": [
            {"call_id": step.id, "tool": step.name, "args": step.args, "reason": step.reason}
            for step in waiting_steps(state)
        ],
    }
    if questions := open_questions(state):
        content["questions"] = [{"id": each.id, "prompt": each.prompt, "schema": each.schema} for each in questions]
    if state.error is not None:
        content["error"] = {"code": state.error.code, "message": state.error.error}
    return content


def turn_text(state: TurnState, *, can_decide: bool) -> str:
    """Return a turn as text: the answer so far and, if it has not ended, how to get the rest."""
    match status_of(state):
        case "completed":
            return state.text
        case "running":
            note = f"The turn is still running. Call get_turn with turn_id {state.turn_id} for the rest."
        case "waiting":
            note = _how_to_decide(state, can_decide)
        case "cancelled":
            note = "The turn was stopped."
        case "failed" | "interrupted" as outcome:
            note = f"The turn {'failed' if outcome == 'failed' else 'was interrupted'}"
            note += f": {state.error.error}" if state.error else "."
        case "joined":
            turn_id = state.joined.turn_id if state.joined else ""
            note = f"The message joined the turn {turn_id}, which answers it: call get_turn with that turn_id."
    return f"{state.text}\n\n{note}" if state.text else note


def _how_to_decide(state: TurnState, can_decide: bool) -> str:
    if questions := open_questions(state):
        prompts = "\n".join(f"- {question.prompt}" for question in questions)
        how = "The user can answer on the page or in another client; then call get_turn for the rest."
        return f"The turn {state.turn_id} waits for the answer to a question:\n{prompts}\n{how}"
    if calls := [step.name for step in open_client_calls(state)]:
        return f"The turn {state.turn_id} waits until its own client has run {', '.join(calls)}; then call get_turn."
    calls = "\n".join(f"- call_id {step.id}: {approval_question(step)}" for step in waiting_steps(state))
    how = (
        "Ask the user, call decide with the turn_id, the call_id and the user's decision, then get_turn for the rest."
        if can_decide
        else "This API key may not decide. Somebody with the scope `approve` can; call get_turn for the rest."
    )
    return f"The turn {state.turn_id} waits for a person's decision:\n{calls}\n{how}"
