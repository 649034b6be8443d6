"""A turn: what an agent is given, what a store knows of it, and what its log folds into.

The log is the only truth. `TurnState` is what it comes to, together with the position it was cut at;
`fold` reads it.
"""

from typing import Any, Literal

from msgspec import Struct, field

from turnwire.core.approvals import Resumption
from turnwire.core.codec import now_ms
from turnwire.core.events import CitationEvent, ErrorEvent, Outcome, Usage
from turnwire.core.ids import new_id

Phase = Literal["queued", "running", "waiting", "ended"]
"""A turn that waits does so for a person, and nobody runs it."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation, in the shape that every model provider knows."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple["ToolRequest", ...] = ()
    call_id: str | None = None


class ToolRequest(Struct, frozen=True):
    call_id: str
    tool: str
    args: dict[str, Any]


class Turn(Struct, frozen=True, kw_only=True):
    """What an agent is asked. `history` is the conversation before this message.

    `resumption` is there when the agent has waited for a person in this turn and goes on now. `progress` is for an
    agent that says `on_crash = "resume"`: what it did in this turn before it was broken off, as messages that follow
    the user's. A tool call without a result in it is to be run now, or refused if `resumption` says so.
    """

    id: str
    session_id: str
    principal: str
    message: str
    agent: str = ""
    channel: str = "http"
    history: tuple[Message, ...] = ()
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    resumption: Resumption | None = None
    progress: tuple[Message, ...] = ()


class TurnRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a store knows of a turn without reading its log."""

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
    """A tool call, a search, a review or a handoff; `answer_offset` is how much text stood before it.

    `reason` is why a person is asked about it.
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


class TurnState(Struct, kw_only=True, omit_defaults=True):
    """A turn as its log tells it up to `position`."""

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
    citations: list[CitationEvent] = field(default_factory=list[CitationEvent])
    tools_used: list[str] = field(default_factory=list[str])
    mode: str | None = None
    usage: Usage | None = None
    error: ErrorEvent | None = None
    timings: dict[str, float] = field(default_factory=dict[str, float])


# Sessions.


_TITLE_LENGTH = 60


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    """What a session is called until somebody names it: the start of its first message, on one line."""
    line = " ".join(message.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
