"""A session, and the conversation that its turns add up to.

The transcript is made for a model provider: every tool call has a result and every message an
answer, whatever happened to the turn. What is added to make it so is never written to a log.
"""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from turnwire.core.ids import new_id
from turnwire.core.logged import now_ms
from turnwire.core.turns import Message, Step, ToolRequest, TurnState

_TITLE_LENGTH = 60
_NOTES = {
    "cancelled": "[The user stopped this answer before it was complete.]",
    "failed": "[This answer failed before it was complete.]",
    "interrupted": "[The server stopped before this answer was complete.]",
}


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


def transcript(states: Iterable[TurnState]) -> tuple[Message, ...]:
    return tuple(message for state in states for message in _turn_messages(state))


def _turn_messages(state: TurnState) -> Iterable[Message]:
    yield Message("user", state.message)
    told = 0
    for calls in _call_groups(state):
        text, told = state.text[told : calls[0].answer_offset], calls[0].answer_offset
        requests = tuple(ToolRequest(step.id, step.name, step.args or {}) for step in calls)
        yield Message("assistant", text, tool_calls=requests)
        for step in calls:
            yield Message("tool", result_text(step), call_id=step.id)
    rest = state.text[told:]
    note = _NOTES.get(state.outcome or "")
    if note:
        rest = f"{rest}\n\n{note}" if rest else note
    if rest or told == 0:
        yield Message("assistant", rest)


def _call_groups(state: TurnState) -> Iterable[list[Step]]:
    """Tool calls of the turn's own agent with no text between them were one request of the model's."""
    group: list[Step] = []
    for step in state.steps:
        if step.kind != "tool" or step.agent_path:
            continue
        if group and step.answer_offset != group[0].answer_offset:
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def result_text(step: Step) -> str:
    if step.state in ("running", "waiting"):
        return '{"error":"cancelled"}'
    if isinstance(step.result, str):
        return step.result
    return msgspec.json.encode(step.result).decode()
