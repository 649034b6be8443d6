"""The events of a turn.

An event is a plain value: no behaviour, no live objects, equal when its fields are. Its `type` is stored on disk and
sent to clients, so a released name keeps its meaning for ever; a new meaning gets a new event.

Every event may carry an `agent_path`: the names of the sub-agents in which it happened, outermost first. It is empty,
and omitted, for events of the turn's own agent.
"""

import re
from typing import Any, Literal

from msgspec import Struct, field

Outcome = Literal["completed", "failed", "cancelled", "interrupted", "joined"]
"""A `joined` turn was not run: its message has become an `input` of another turn."""
InputMode = Literal["steer", "collect"]
RunsOn = Literal["server", "client"]


def _type_name(class_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name.removesuffix("Event")).lower()


class EventBase(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=_type_name):
    agent_path: tuple[str, ...] = ()


class SessionEvent(EventBase, frozen=True):
    """The first event of every log: its session, its turn and the agent.

    The log of a fork has the events of the turn `forked_from`, up to the position `forked_at`.
    """

    session_id: str
    turn_id: str
    agent: str
    forked_from: str | None = None
    forked_at: int | None = None


class AttachedFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The description of a file of a message. Its bytes are a blob of the session, by their SHA-256 `digest`.

    A file that the client only named by its `url` has neither digest nor size: the server does not fetch it.
    """

    media_type: str
    name: str | None = None
    size: int | None = None
    digest: str | None = None
    url: str | None = None


class MessageEvent(EventBase, frozen=True):
    """The second event of every log: the user's message, so that the log alone is the whole turn.

    In a fork that continues with another message there is a later one too. It closes the calls that are open there.
    `metadata` is what the client's application sent with the message.
    """

    content: str
    by: str
    channel: str
    attachments: tuple[AttachedFile, ...] = ()
    metadata: dict[str, Any] | None = None


class InputEvent(EventBase, frozen=True):
    """A message that has entered the running turn; the agent's next model call has it.

    `turn_id` is the turn under which the message was accepted, which ends as `joined`. A `steer` was taken by the
    agent while it ran; a `collect` belongs to the message that began the turn. A restart does not make it void.
    """

    content: str
    by: str
    channel: str
    turn_id: str
    mode: InputMode = "steer"


class StatusEvent(EventBase, frozen=True):
    """A line about the current activity, for a person."""

    text: str


class HandoffEvent(EventBase, frozen=True):
    """Another agent has taken over."""

    agent: str


class Hit(Struct, frozen=True, omit_defaults=True):
    """One piece of evidence; `index` is its number in this turn, which never changes."""

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
    """A retrieval step has started or ended."""

    step_id: str
    phase: Literal["started", "finished", "failed"]
    tool: str
    query: str
    page: int | None = None
    hits: tuple[Hit, ...] | None = None
    ms: float | None = None


class ReviewEvent(EventBase, frozen=True):
    """A review of the evidence or of a draft. `kept` and `dropped` are indexes of hits.

    `matched` and `missing` are words of the question; `method` names the reviewer (`coverage` or `model`).
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
    """A tool is about to run; one that `runs_on` the client is run there, and the turn waits for its result."""

    call_id: str
    tool: str
    args: dict[str, Any]
    runs_on: RunsOn = "server"


class ToolProgressEvent(EventBase, frozen=True):
    """The progress of a running tool; `fraction` is from 0 to 1."""

    call_id: str
    text: str | None = None
    fraction: float | None = None
    data: Any = None


class ToolResultEvent(EventBase, frozen=True):
    """A tool has ended, successfully or not."""

    call_id: str
    tool: str
    success: bool
    result: Any = None
    ms: float | None = None


class ReasoningEvent(EventBase, frozen=True):
    """A piece of the model's reasoning, if the model shows it."""

    content: str


class TokenEvent(EventBase, frozen=True, gc=False):
    """A piece of the answer."""

    content: str


class CitationEvent(EventBase, frozen=True):
    """The source of a `[n]` in the answer. Offsets count code points, ends exclusive."""

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
    """A person must decide before the tool may run, and may change the arguments if they are `editable`."""

    call_id: str
    tool: str
    args: dict[str, Any]
    reason: str | None = None
    editable: bool = False


class ApprovalResponseEvent(EventBase, frozen=True):
    """A person has decided. With `args`, the tool runs with these arguments instead of those of the request."""

    call_id: str
    approved: bool
    reason: str | None = None
    by: str | None = None
    args: dict[str, Any] | None = None


class QuestionEvent(EventBase, frozen=True):
    """The turn waits for the answer to a question. `schema` is that of the value, and absent if any value will do.

    `call_id` is the tool call that asks. A restart does not make the question void.
    """

    id: str
    prompt: str
    schema: dict[str, Any] | None = None
    call_id: str | None = None


class ReplyEvent(EventBase, frozen=True):
    """A question was answered, or `declined`: by a person, or because nobody answered in time (`reason`)."""

    question_id: str
    value: Any = None
    declined: bool = False
    reason: str | None = None
    by: str | None = None


class RestartEvent(EventBase, frozen=True):
    """A new worker repeats the unfinished step: the events after `from_position` are void."""

    from_position: int
    reason: str


class CustomEvent(EventBase, frozen=True):
    """An event of the application."""

    name: str
    data: Any = None


class UsageEvent(EventBase, frozen=True):
    """The usage of one model call. An absent number is unknown, not zero."""

    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


class Usage(Struct, frozen=True, omit_defaults=True):
    """The sum of a turn's usage events; a number that none of them has is absent."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


class ResponseEvent(EventBase, frozen=True):
    """The whole answer, once, before a completed `done`."""

    content: str
    # Clients expect these two fields even when they are empty; `omit_defaults` keeps a default made by a factory.
    citations: tuple[CitationEvent, ...] = field(default_factory=lambda: ())
    mode: str | None = None
    tools_used: tuple[str, ...] = field(default_factory=lambda: ())
    usage: Usage | None = None
    timings: dict[str, float] | None = None
    # Where the answer comes from: the model that wrote it, or that failed to, and why.
    model: str | None = None
    model_error: str | None = None


class ErrorEvent(EventBase, frozen=True):
    """The failure of the turn, in words that are safe to show: never a stack trace or a secret."""

    error: str
    code: str
    retryable: bool = False


class Joined(Struct, frozen=True):
    """The turn that a message has entered, and the position of its `input` event there."""

    turn_id: str
    position: int


class DoneEvent(EventBase, frozen=True):
    """The last event of every log, exactly once. `reason` says why the turn did not complete.

    A `joined` turn has `joined`: where its message is, and its answer.
    """

    outcome: Outcome
    session_id: str
    turn_id: str
    reason: str | None = None
    joined: Joined | None = None


Event = (
    SessionEvent
    | MessageEvent
    | InputEvent
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
    | QuestionEvent
    | ReplyEvent
    | RestartEvent
    | CustomEvent
    | UsageEvent
    | ResponseEvent
    | ErrorEvent
    | DoneEvent
)
