"""Turns and sessions as values: the agent's input, the store's records, and the state that a log folds into.

The log is the only source of truth. `TurnState` is its fold (see `state`) up to a position.
"""

from typing import Any, Literal

from msgspec import Struct, field

from turnwire.core.ids import new_id
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import AttachedFile, CitationEvent, ErrorEvent, InputMode, Joined, Outcome, RunsOn, Usage
from turnwire.core.log.model_options import ModelOptions

Phase = Literal["queued", "running", "waiting", "ended"]
"""A waiting turn is suspended for a person, and no worker runs it."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation, in the shape that every model provider knows.

    `agent` is the name of the agent that the last handoff of its turn went to, if there was one. `attachments` describe
    the files of a user's message; `core.log.files` reads them.
    """

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple["ToolRequest", ...] = ()
    call_id: str | None = None
    agent: str | None = None
    attachments: tuple[AttachedFile, ...] = ()


class ToolRequest(Struct, frozen=True):
    call_id: str
    tool: str
    args: dict[str, Any]


class Turn(Struct, frozen=True, kw_only=True):
    """The input of an agent. `history` is the conversation before this message.

    `parent_turn_id` is the turn that it continues, which need not be the session's last; "" is none.

    `progress` is for an agent with `on_divergence = "continue"` that has changed while the turn ran: its finished tool
    steps, as messages that follow the user's.

    `attachments` describe the files of the message; `read_file` returns their bytes. `metadata` is what the client's
    application sent with the message; trust it no more than the message. `model_options` are the options for the model
    that came with the message.
    """

    id: str
    session_id: str
    principal: str
    message: str
    agent: str = ""
    channel: str = "http"
    history: tuple[Message, ...] = ()
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    progress: tuple[Message, ...] = ()
    parent_turn_id: str | None = None
    attachments: tuple[AttachedFile, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    model_options: ModelOptions = ModelOptions()


class TurnRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A turn as a store lists it, without its log."""

    id: str
    session_id: str
    principal: str
    agent: str
    message: str
    channel: str = "http"
    external_id: str | None = None
    parent_turn_id: str | None = None
    phase: Phase = "queued"
    outcome: Outcome | None = None
    worker: str | None = None
    epoch: int = 0
    last_position: int = 0
    first_kept: int = 1
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    waiting_until: int | None = None
    disconnect_grace: float | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class Step(Struct, kw_only=True, omit_defaults=True):
    """A tool call, a search, a review or a handoff; `answer_offset` is the length of the answer before it.

    `reason` says why the step needs a person's approval, and `editable` whether its arguments may be changed. A running
    tool call that `runs_on` the client waits for the client's result.
    """

    kind: Literal["tool", "search", "review", "handoff"]
    id: str
    name: str
    position: int
    answer_offset: int
    args: Any = None
    state: Literal["running", "waiting", "succeeded", "failed"] = "running"
    result: Any = None
    progress: str | None = None
    reason: str | None = None
    ms: float | None = None
    agent_path: tuple[str, ...] = ()
    runs_on: RunsOn = "server"
    editable: bool = False


class Question(Struct, kw_only=True, omit_defaults=True):
    """A question of the turn. An `open` one is what the turn waits for; `value` is the answer."""

    id: str
    prompt: str
    position: int
    schema: dict[str, Any] | None = None
    call_id: str | None = None
    agent_path: tuple[str, ...] = ()
    state: Literal["open", "answered", "declined", "cancelled"] = "open"
    value: Any = None


class FollowUp(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message after the first one in the log of a fork; `answer_offset` is the length of the answer before it."""

    content: str
    position: int
    answer_offset: int
    attachments: tuple[AttachedFile, ...] = ()


class Input(Struct, omit_defaults=True):
    """A message that has entered the turn; `answer_offset` is the length of the answer before it.

    `turn_id` is the turn under which it was accepted.
    """

    content: str
    turn_id: str
    by: str
    position: int
    answer_offset: int
    mode: InputMode = "steer"


class TurnState(Struct, kw_only=True, omit_defaults=True, gc=False):
    """The fold of a turn's log up to `position`."""

    turn_id: str = ""
    session_id: str = ""
    agent: str = ""
    message: str = ""
    position: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    text: str = ""
    status: str | None = None
    steps: list[Step] = field(default_factory=list[Step])
    inputs: list[Input] = []  # Omitted when it is empty, unlike the lists that have always been there.
    questions: list[Question] = []
    citations: list[CitationEvent] = field(default_factory=list[CitationEvent])
    tools_used: list[str] = field(default_factory=list[str])
    mode: str | None = None
    model: str | None = None
    model_error: str | None = None
    usage: Usage | None = None
    error: ErrorEvent | None = None
    timings: dict[str, float] = field(default_factory=dict[str, float])
    forked_from: str | None = None
    forked_at: int | None = None
    restarts: int = 0
    follow_ups: tuple[FollowUp, ...] = ()
    attachments: tuple[AttachedFile, ...] = ()
    joined: Joined | None = None
    shared_state: Any = None


_TITLE_LENGTH = 60


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One conversation: an owner and its turns in order."""

    id: str
    principal: str
    created_at: int
    updated_at: int
    external_id: str | None = None
    title: str | None = None
    turn_count: int = 0


def new_session(principal: str, external_id: str | None = None, title: str | None = None) -> Session:
    now = now_ms()
    return Session(
        id=new_id(), principal=principal, external_id=external_id, title=title, created_at=now, updated_at=now
    )


def title_from(message: str) -> str:
    """Return the default title of a session: the start of its first message, on one line."""
    line = " ".join(message.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"


# The ends of turns


class Stop(Struct, frozen=True):
    """A reason to stop a running turn: a request, readers that left, a shutdown, a lost worker.

    The turn's log ends with its outcome and its error.
    """

    outcome: Outcome
    reason: str
    error: ErrorEvent | None = None


def cancelled(reason: str) -> Stop:
    return Stop("cancelled", reason)


SHUTDOWN = Stop(
    "interrupted",
    "shutdown",
    ErrorEvent("The server was stopped while it worked on this answer.", "interrupted", retryable=True),
)
WORKER_LOST = Stop(
    "interrupted",
    "worker_lost",
    ErrorEvent("The server was lost while it worked on this answer.", "interrupted", retryable=True),
)
HANDED_BACK = Stop("interrupted", "handed_back")
"""A stop between two steps: another worker continues the turn."""
WAITING = Stop("interrupted", "waiting")
"""A stop for a wait: the turn is suspended until a question is answered, or the client has sent a result."""
