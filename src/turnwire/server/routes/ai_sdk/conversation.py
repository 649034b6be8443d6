"""Where in a chat a message belongs: which turn it continues, whose answer it replaces, what it repeats.

The client's messages have ids: of the user's we remember which turn answers them, the assistant's are our turns. So
the conversation that is gone on with is the one that the client shows.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.core.contracts import OnBusy
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.turns import Message, TurnRecord
from turnwire.server.routes.ai_sdk.messages import ChatBody, UIMessage, history_of
from turnwire.server.turnwire import Turnwire

_MOST_TURNS = 200


class Plan(Struct, frozen=True, kw_only=True):
    """How a message is to be answered: by the turn that it joins, or by a new one.

    With `anew` that one continues nothing, though it is not the first of its session.
    """

    joins: TurnRecord | None = None
    session_id: str | None = None
    parent: TurnRecord | None = None
    anew: bool = False
    history: list[Message] = field(default_factory=list[Message])
    on_busy: OnBusy = "enqueue"
    told: dict[str, Any] = field(default_factory=dict[str, Any])
    key: str | None = None


async def plan_for(turnwire: Turnwire, principal: str, body: ChatBody) -> Plan:
    session_id = await _session_of(turnwire, principal, body)
    turns: list[TurnRecord] = []
    if session_id is not None:
        turns = await turnwire.store.list_turns(principal, session_id=session_id, limit=_MOST_TURNS)
    asked, again = body.asked, body.trigger == "regenerate-message"
    replaced = _replaced(body, asked, turns)
    if again and replaced and replaced.id != body.message_id and _is_being_made_anew(replaced):
        return Plan(joins=replaced)
    parent = await _parent_of(turnwire, principal, body, replaced, turns)
    told: dict[str, Any] = {}
    if asked.id:
        told["message_id"] = asked.id
    if asked.files:
        told["files"] = asked.files
    if again and replaced:
        told["regenerates"] = replaced.id
    return Plan(
        session_id=body.id or session_id,
        parent=parent,
        anew=replaced is not None and parent is None,
        history=[] if turns else _brought(turnwire, body),
        on_busy=body.on_busy or _on_busy(replaced, turns),
        told=told,
        key=_key(body.id or session_id, asked, again, replaced),
    )


async def _session_of(turnwire: Turnwire, principal: str, body: ChatBody) -> str | None:
    """The session of the chat; a client that does not name it may have answers of ours from it. None if it is new."""
    if body.id is not None:
        try:
            return (await turnwire.store.find_session(principal, body.id)).id
        except SessionNotFoundError:
            return None
    for message in reversed(body.all):
        if message.role == "assistant" and message.id and is_own_id(message.id):
            try:
                return (await turnwire.store.find_turn(principal, message.id)).session_id
            except TurnNotFoundError:
                continue
    return None


def _replaced(body: ChatBody, asked: UIMessage, turns: list[TurnRecord]) -> TurnRecord | None:
    """The turn whose answer is made anew, or whose message was edited."""
    again = body.trigger == "regenerate-message"
    if not again and (body.message_id is None or body.message_id != asked.id):
        return None
    named = next((turn for turn in turns if again and turn.id == body.message_id), None)
    return named or _answer_to(asked, turns)


def _answer_to(asked: UIMessage, turns: list[TurnRecord]) -> TurnRecord | None:
    return next((turn for turn in reversed(turns) if asked.id and turn.options.get("message_id") == asked.id), None)


def _is_being_made_anew(turn: TurnRecord) -> bool:
    return turn.phase != "ended" and "regenerates" in turn.options


async def _parent_of(
    turnwire: Turnwire, principal: str, body: ChatBody, replaced: TurnRecord | None, turns: list[TurnRecord]
) -> TurnRecord | None:
    if replaced is not None:
        parent = replaced.parent_turn_id
        return await turnwire.store.find_turn(principal, parent) if parent else None
    by_id = {turn.id: turn for turn in turns}
    for message in reversed(body.all[:-1]):
        known = by_id.get(message.id or "") if message.role == "assistant" else _answer_to(message, turns)
        if known is not None:
            return known
    return None


def _brought(turnwire: Turnwire, body: ChatBody) -> list[Message]:
    """What was said elsewhere; the session remembers it from its first turn on."""
    most = 2 * turnwire.settings.history_turns
    return history_of(body.all[:-1][-most:]) if most else []


def _on_busy(replaced: TurnRecord | None, turns: list[TurnRecord]) -> OnBusy:
    """Who takes a message back, or writes on instead of deciding, does not want the old answer any more."""
    if replaced is not None or any(turn.phase == "waiting" for turn in turns):
        return "interrupt"
    return "enqueue"


def _key(chat: str | None, asked: UIMessage, again: bool, replaced: TurnRecord | None) -> str | None:
    """Equal for a request that is repeated."""
    if not asked.id:
        return None
    what = ["again", replaced.id] if again and replaced else ["submit", asked.id, asked.text, again]
    return "ai_sdk:" + hashlib.sha256(msgspec.json.encode([chat, *what])).hexdigest()
