"""A turn's log as MCP progress messages, and its state as the result of a tool."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, assert_never

import msgspec
from msgspec import Struct

from turnwire.core.codec import LoggedEvent
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    HandoffEvent,
    InputEvent,
    MessageEvent,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.turns import Outcome, Step, TurnState

TurnStatus = Literal["running", "waiting"] | Outcome
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
    match event:
        case SessionEvent(turn_id=turn_id, session_id=session_id):
            return f"{_STARTED}{turn_id} of session {session_id}"
        case StatusEvent(text=text):
            return text
        case HandoffEvent(agent=agent):
            return f"{agent} takes over"
        case SearchEvent(phase="started", query=query):
            return f"searches: {query}"
        case SearchEvent(phase=phase, hits=hits):
            return f"search {phase}: {len(hits or ())} found"
        case ReviewEvent(verdict=verdict):
            return f"review: {verdict}"
        case ToolCallEvent(tool=tool):
            return f"{tool}: started"
        case ToolProgressEvent(text=text):
            return text
        case ToolResultEvent(tool=tool, success=success):
            return f"{tool}: {'done' if success else 'failed'}"
        case ApprovalRequestEvent(tool=tool):
            return f"{tool}: a person must approve it"
        case ApprovalResponseEvent(approved=approved):
            return "approved" if approved else "refused"
        case RestartEvent():
            return "the last step is repeated; what it had written is void"
        case ErrorEvent(error=error):
            return error
        case (
            MessageEvent()
            | InputEvent()
            | ReasoningEvent()
            | TokenEvent()
            | CitationEvent()
            | CustomEvent()
            | UsageEvent()
            | ResponseEvent()
            | DoneEvent()
        ):
            return None
        case _:
            assert_never(event)


def waiting_steps(state: TurnState) -> list[Step]:
    return [step for step in state.steps if step.state == "waiting"]


def status_of(state: TurnState) -> TurnStatus:
    if state.outcome is not None:
        return state.outcome
    return "waiting" if waiting_steps(state) else "running"


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


def approval_question(step: Step) -> str:
    """Return the question for the person who decides."""
    args = msgspec.json.encode(step.args).decode()
    return f"Allow the call of {step.name} with {args}?" + (f" {step.reason}" if step.reason else "")


def _how_to_decide(state: TurnState, can_decide: bool) -> str:
    calls = "\n".join(f"- call_id {step.id}: {approval_question(step)}" for step in waiting_steps(state))
    how = (
        "Ask the user, call decide with the turn_id, the call_id and the user's decision, then get_turn for the rest."
        if can_decide
        else "This API key may not decide. Somebody with the scope `approve` can; call get_turn for the rest."
    )
    return f"The turn {state.turn_id} waits for a person's decision:\n{calls}\n{how}"
