"""Turns in words, for protocols that tell a person or another agent about progress: steps, states, questions."""

from typing import Any, Literal, assert_never

import msgspec

from turnwire.core.log.events import (
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
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
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
from turnwire.core.log.turns import Outcome, Question, Step, TurnState

TurnStatus = Literal["running", "waiting"] | Outcome

_VALUE = "value"


def step_line(event: Event) -> str | None:
    """Return one line about a step; None for an event that is no step."""
    match event:
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
        case QuestionEvent(prompt=prompt):
            return f"question: {prompt}"
        case ReplyEvent(declined=declined):
            return "not answered" if declined else "answered"
        case RestartEvent():
            return "the last step is repeated; what it had written is void"
        case ErrorEvent(error=error):
            return error
        case (
            SessionEvent()
            | MessageEvent()
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


def open_questions(state: TurnState) -> list[Question]:
    return [question for question in state.questions if question.state == "open" and state.outcome is None]


def open_client_calls(state: TurnState) -> list[Step]:
    """Return the calls of the client's tools that have no result."""
    return [step for step in state.steps if step.runs_on == "client" and step.state == "running" and not state.outcome]


def status_of(state: TurnState) -> TurnStatus:
    if state.outcome is not None:
        return state.outcome
    return "waiting" if waiting_steps(state) or open_questions(state) or open_client_calls(state) else "running"


def approval_question(step: Step | ApprovalRequestEvent) -> str:
    """Return the question for the person who decides."""
    tool = step.name if isinstance(step, Step) else step.tool
    args = msgspec.json.encode(step.args).decode()
    return f"Allow the call of {tool} with {args}?" + (f" {step.reason}" if step.reason else "")


def question_schema(question: Question | QuestionEvent) -> dict[str, Any]:
    """Return the schema of an elicitation's form for the answer, which protocols want to be an object."""
    schema = question.schema or {"type": "string"}
    if "properties" in schema:
        return {"type": "object", **schema}
    return {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE]}


def question_value(question: Question | QuestionEvent, content: dict[str, Any]) -> Any:
    """Return the answer in the content of a form that has the `question_schema`."""
    return content if "properties" in (question.schema or {}) else content.get(_VALUE)
