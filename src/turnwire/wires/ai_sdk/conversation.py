"""Where in a chat a message belongs: which turn it continues, whose answer it replaces, what it repeats.

The client's messages have ids: of the user's we remember which turn answers them, the assistant's are our turns. So
the conversation that is gone on with is the one that the client shows.
"""

import hashlib
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from turnwire.app import Turnwire
from turnwire.core.contracts import OnBusy
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.turns import Message, TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.streams.resume import ResumePoint
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.ai_sdk.frames import chunk
from turnwire.wires.ai_sdk.messages import ChatBody, UIMessage, chat_message_body, history_of
from turnwire.wires.ai_sdk.resume import RunId, parse_run_id, place_of_decision

_MOST_TURNS = 200


class ChatPlan(Struct, frozen=True, kw_only=True):
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


async def plan_for(turnwire: Turnwire, principal: str, body: ChatBody) -> ChatPlan:
    session_id = await _session_of(turnwire, principal, body)
    turns: list[TurnRecord] = []
    if session_id is not None:
        turns = await turnwire.store.list_turns(principal, session_id=session_id, limit=_MOST_TURNS)
    asked, again = body.question, body.trigger == "regenerate-message"
    replaced = _replaced(body, asked, turns)
    if again and replaced and replaced.id != body.message_id and _is_being_made_anew(replaced):
        return ChatPlan(joins=replaced)
    parent = await _parent_of(turnwire, principal, body, replaced, turns)
    told: dict[str, Any] = {}
    if asked.id:
        told["message_id"] = asked.id
    if asked.files:
        told["files"] = asked.files
    if again and replaced:
        told["regenerates"] = replaced.id
    return ChatPlan(
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
    for message in reversed(body.all_messages):
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
    for message in reversed(body.all_messages[:-1]):
        known = by_id.get(message.id or "") if message.role == "assistant" else _answer_to(message, turns)
        if known is not None:
            return known
    return None


def _brought(turnwire: Turnwire, body: ChatBody) -> list[Message]:
    """What was said elsewhere; the session remembers it from its first turn on."""
    most = 2 * turnwire.settings.history_turns
    return history_of(body.all_messages[:-1][-most:]) if most else []


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


# Decisions that come with a message: each is about a call, and about the arguments that the person was shown.


_EXACT, _LARGEST = 2**53, 2**1023


async def decide(turnwire: Turnwire, caller: Caller, record: TurnRecord, said: UIMessage) -> set[str]:
    """Takes them, and returns the calls. Repeating them changes nothing.

    Raises ApprovalNotFoundError, ApprovalConflictError, TurnNotWaitingError, HttpError 422.
    """
    steps = {step.id: step for step in (await turnwire.state(record)).steps if step.kind == "tool"}
    decided: set[str] = set()
    for part in said.parts:
        if (decision := part.decision) is None:
            continue
        if decision.approved is None:
            raise HttpError(422, "invalid_request", "approval: neither approved nor denied")
        # A call whose id was used before has the position of the second one behind it.
        known = (one for one in (decision.id, decision.id.rpartition("-")[0]) if one in steps)
        call_id = next(known, decision.id)
        asked = steps[call_id].args if call_id in steps else None
        await turnwire.runner.decide(
            record.id,
            call_id,
            approved=decision.approved,
            reason=decision.reason,
            by=caller.principal,
            args=asked if _as_shown(asked) == _as_shown(part.input) else part.input,
        )
        decided.add(call_id)
    return decided


def _as_shown(value: Any) -> Any:
    """A value as JavaScript reads it: a person there sees large numbers rounded, and sends them back so."""
    if isinstance(value, dict):
        return {name: _as_shown(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_shown(one) for one in cast("list[Any]", value)]
    is_large = isinstance(value, int) and not isinstance(value, bool) and _EXACT < abs(value) < _LARGEST
    return float(value) if is_large else value


# Which turn answers what a chat's client sends, and where in it the client goes on; over HTTP and on a socket.


async def started(turnwire: Turnwire, caller: Caller, body: ChatBody, key: str | None) -> TurnRecord:
    """The turn that answers a message: a new one, or the one that does already."""
    plan = await plan_for(turnwire, caller.principal, body)
    if plan.joins is not None:
        return plan.joins
    asked = chat_message_body(body, plan.session_id, plan.on_busy, plan.told)
    accepted = await turnwire.start(
        caller.principal, asked, key or plan.key, parent=plan.parent, anew=plan.anew, history=plan.history
    )
    return accepted.record


async def gone_on(
    turnwire: Turnwire, caller: Caller, body: ChatBody, said: UIMessage, wire: AiSdk
) -> tuple[TurnRecord, ResumePoint | None]:
    """Takes the decisions in a message, whose id is the turn's: that turn, and where they were waited for.

    No place, if it still waits for decisions that the client has yet to make.
    """
    caller.needs("approve")
    record = await turnwire.store.find_turn(caller.principal, said.id or "")
    if body.id is not None:
        session = await turnwire.store.find_session(caller.principal, body.id)
        if session.id != record.session_id:
            raise TurnNotFoundError(record.id)
    decided = await decide(turnwire, caller, record, said)
    place = await place_of_decision(turnwire.store, record.id, wire, decided)
    return await turnwire.store.find_turn(caller.principal, record.id), place


def still_waiting(turn_id: str) -> list[bytes]:
    """The chunks that tell a client to come back with the rest of its decisions."""
    return [chunk("start", {"messageId": turn_id}), chunk("finish", {"finishReason": "tool-calls"})]


async def run_of(turnwire: Turnwire, caller: Caller, wanted: str) -> RunId | None:
    """The turn that a chat is answering, or the one that is named itself; None if there is none."""
    store = turnwire.store
    try:
        session = await store.find_session(caller.principal, wanted)
    except SessionNotFoundError:
        run = parse_run_id(wanted)
        if not is_own_id(run.turn_id):
            return None
        return RunId((await store.find_turn(caller.principal, run.turn_id)).id, run.first)
    running = await unfinished(turnwire, caller, session.id)
    return RunId(running[0].id) if running else None


async def unfinished(turnwire: Turnwire, caller: Caller, session_id: str) -> list[TurnRecord]:
    most = turnwire.settings.max_queued_turns + 2
    turns = await turnwire.store.list_turns(caller.principal, session_id=session_id, limit=most)
    return [turn for turn in turns if turn.phase != "ended"]
