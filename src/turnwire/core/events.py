"""What can happen in a turn.

An event is a plain value: no behaviour, no live objects, equal when its fields are.
Its `type` is stored on disk and sent to clients, so a released name keeps its meaning
for ever; a new meaning gets a new event.

Every event may carry an `agent_path`: the names of the sub-agents, outermost first, that it
happened in. It is empty, and left out, for what the turn's own agent does.
"""

import re
from typing import Any, Literal

from msgspec import Struct, field

Outcome = Literal["completed", "failed", "cancelled", "interrupted"]


def _type_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name.removesuffix("Event")).lower()


class EventBase(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=_type_name):
    agent_path: tuple[str, ...] = ()


class SessionEvent(EventBase, frozen=True):
    """Always the first: which session and turn this log belongs to, and who answers."""

    session_id: str
    turn_id: str
    agent: str


class MessageEvent(EventBase, frozen=True):
    """Always the second: what was asked, so that the log alone tells the whole turn."""

    content: str
    by: str
    channel: str


class StatusEvent(EventBase, frozen=True):
    """A line for a person about what is going on."""

    text: str


class HandoffEvent(EventBase, frozen=True):
    """Another agent has taken over."""

    agent: str


class Hit(Struct, frozen=True, omit_defaults=True):
    """One piece of evidence; `index` is its number in this turn, given once and never changed."""

    index: int
    document_id: str
    chunk_id: str | None = None
    title: str | None = None
    url: str | None = None
    page_number: int | None = None
    text: str | None = None
    score: float | None = None
    heading: str | None = None


class SearchEvent(EventBase, frozen=True):
    """A step of retrieval began or ended."""

    step_id: str
    phase: Literal["started", "finished", "failed"]
    tool: str
    query: str
    page: int | None = None
    hits: tuple[Hit, ...] | None = None
    ms: float | None = None


class ReviewEvent(EventBase, frozen=True):
    """Evidence, or a draft, was judged. `kept` and `dropped` are indexes of hits.

    `matched` and `missing` are words of the question; `method` says who judged (`coverage` or `model`).
    """

    step_id: str
    iteration: int
    verdict: Literal["approved", "rejected"]
    feedback: str | None = None
    kept: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    next_queries: tuple[str, ...] = ()
    rounds_left: int | None = None
    matched: tuple[str, ...] = ()
    method: str | None = None


class ToolCallEvent(EventBase, frozen=True):
    """A tool is about to run."""

    call_id: str
    tool: str
    args: dict[str, Any]


class ToolProgressEvent(EventBase, frozen=True):
    """A running tool says how far it is; `fraction` is from 0 to 1."""

    call_id: str
    text: str | None = None
    fraction: float | None = None
    data: Any = None


class ToolResultEvent(EventBase, frozen=True):
    """A tool has ended, well or badly."""

    call_id: str
    tool: str
    success: bool
    result: Any = None
    ms: float | None = None


class ReasoningEvent(EventBase, frozen=True):
    """A piece of the model's own thinking, where it shows it."""

    content: str


class TokenEvent(EventBase, frozen=True, gc=False):
    """A piece of the answer."""

    content: str


class CitationEvent(EventBase, frozen=True):
    """What a `[n]` in the answer stands on. Offsets count code points, ends exclusive."""

    index: int
    document_id: str
    chunk_id: str | None = None
    title: str | None = None
    url: str | None = None
    page_number: int | None = None
    supporting_quote: str | None = None
    source_tool: str | None = None
    score: float | None = None
    source_start: int | None = None
    source_end: int | None = None
    answer_start: int | None = None
    answer_end: int | None = None
    heading: str | None = None


class ApprovalRequestEvent(EventBase, frozen=True):
    """A person must decide before the tool may run."""

    call_id: str
    tool: str
    args: dict[str, Any]
    reason: str | None = None


class ApprovalResponseEvent(EventBase, frozen=True):
    """A person has decided."""

    call_id: str
    approved: bool
    reason: str | None = None
    by: str | None = None


class RestartEvent(EventBase, frozen=True):
    """A new worker runs the unfinished step again: what came after `from_position` is void."""

    from_position: int
    reason: str


class CustomEvent(EventBase, frozen=True):
    """The application's own."""

    name: str
    data: Any = None


class UsageEvent(EventBase, frozen=True):
    """What a model call cost. Absent is not zero: it means the provider did not say."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(Struct, frozen=True, omit_defaults=True):
    """The sum of a turn's usage events; absent where none of them said."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


class ResponseEvent(EventBase, frozen=True):
    """The whole answer, once, before a completed `done`."""

    content: str
    # Clients of every dialect expect these two, so they are written even when they are empty:
    # a default made by a function is not left out.
    citations: tuple[CitationEvent, ...] = field(default_factory=lambda: ())
    mode: str | None = None
    tools_used: tuple[str, ...] = field(default_factory=lambda: ())
    usage: Usage | None = None
    timings: dict[str, float] | None = None


class ErrorEvent(EventBase, frozen=True):
    """Why the turn failed, in words that are safe to show: never a stack trace or a secret."""

    error: str
    code: str
    retryable: bool = False


class DoneEvent(EventBase, frozen=True):
    """Always the last, exactly once. `reason` says why a turn did not complete."""

    outcome: Outcome
    session_id: str
    turn_id: str
    reason: str | None = None


RESERVED = (SessionEvent, MessageEvent, DoneEvent)
"""How every log begins and ends: Turnwire writes these, an agent must not."""

Event = (
    SessionEvent
    | MessageEvent
    | StatusEvent
    | HandoffEvent
    | SearchEvent
    | ReviewEvent
    | ToolCallEvent
    | ToolProgressEvent
    | ToolResultEvent
    | ReasoningEvent
    | TokenEvent
    | CitationEvent
    | ApprovalRequestEvent
    | ApprovalResponseEvent
    | RestartEvent
    | CustomEvent
    | UsageEvent
    | ResponseEvent
    | ErrorEvent
    | DoneEvent
)
