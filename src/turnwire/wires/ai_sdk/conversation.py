"""A message's place in a chat: the turn it continues, the answer it replaces, the request it repeats.

The client's messages have ids: each turn keeps the id of the user's message it answers, and an assistant's message has
the id of its turn. So a new turn continues the conversation that the client shows.
"""

import hashlib
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from turnwire.core.contracts.stores import OnBusy
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.log.turns import Message, Step, TurnRecord
from turnwire.server.attachments import Attachment
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.services import Services
from turnwire.server.streams.resume import ResumePoint, find_start, void_of
from turnwire.server.turns import on_busy_for, start_turn, turn_state
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.ai_sdk.frames import chunk
from turnwire.wires.ai_sdk.messages import (
    ApprovalPart,
    ChatBody,
    UIMessage,
    UIPart,
    chat_message_body,
    history_of,
)
from turnwire.wires.ai_sdk.resume import find_answer, parse_run_id
from turnwire.wires.framing import known_call_id

_MAX_TURNS = 200


class ChatPlan(Struct, frozen=True, kw_only=True):
    """The plan for a message: the turn that it joins, or a new one.

    With `restart` the new turn continues none, though it is not the first of its session. `options` go to the agent.
    """

    joins: TurnRecord | None = None
    session_id: str | None = None
    parent: TurnRecord | None = None
    restart: bool = False
    history: list[Message] = field(default_factory=list[Message])
    history_files: list[Attachment] = field(default_factory=list[Attachment])
    on_busy: OnBusy = "enqueue"
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    key: str | None = None


async def plan_for(services: Services, principal: str, body: ChatBody) -> ChatPlan:
    session_id = await _session_of(services, principal, body)
    turns: list[TurnRecord] = []
    if session_id is not None:
        turns = await services.store.list_turns(principal, session_id=session_id, limit=_MAX_TURNS)
    message, regenerates = body.question, body.trigger == "regenerate-message"
    replaced = _replaced(body, message, turns)
    if regenerates and replaced and replaced.id != body.message_id and _is_regenerating(replaced):
        return ChatPlan(joins=replaced)
    parent = await _parent_of(services, principal, body, replaced, turns)
    options: dict[str, Any] = {}
    if message.id:
        options["message_id"] = message.id
    if regenerates and replaced:
        options["regenerates"] = replaced.id
    history, history_files = ([], []) if turns else _client_history(services, body)
    return ChatPlan(
        session_id=body.id or session_id,
        parent=parent,
        restart=replaced is not None and parent is None,
        history=history,
        history_files=history_files,
        on_busy=body.on_busy or ("interrupt" if replaced else on_busy_for(services, turns)),
        options=options,
        key=_key(body.id or session_id, message, regenerates, replaced),
    )


async def _session_of(services: Services, principal: str, body: ChatBody) -> str | None:
    """Return the session of the chat, which may be named only by an answer of ours; None if it is new."""
    if body.id is not None:
        try:
            return (await services.store.find_session(principal, body.id)).id
        except SessionNotFoundError:
            return None
    for message in reversed(body.all_messages):
        if message.role == "assistant" and message.id and is_own_id(message.id):
            try:
                return (await services.store.find_turn(principal, message.id)).session_id
            except TurnNotFoundError:
                continue
    return None


def _replaced(body: ChatBody, message: UIMessage, turns: list[TurnRecord]) -> TurnRecord | None:
    """Return the turn whose answer is regenerated, or whose message was edited."""
    regenerates = body.trigger == "regenerate-message"
    if not regenerates and (body.message_id is None or body.message_id != message.id):
        return None
    named = next((turn for turn in turns if regenerates and turn.id == body.message_id), None)
    return named or _answer_to(message, turns)


def _answer_to(message: UIMessage, turns: list[TurnRecord]) -> TurnRecord | None:
    return next((turn for turn in reversed(turns) if message.id and question_id(turn) == message.id), None)


def question_id(turn: TurnRecord) -> str:
    """Return the id of the message that a turn answers: the client's, or ours for one of another protocol."""
    return turn.options.get("message_id") or f"{turn.id}-question"


def _is_regenerating(turn: TurnRecord) -> bool:
    return turn.phase != "ended" and "regenerates" in turn.options


async def _parent_of(
    services: Services, principal: str, body: ChatBody, replaced: TurnRecord | None, turns: list[TurnRecord]
) -> TurnRecord | None:
    if replaced is not None:
        parent = replaced.parent_turn_id
        return await services.store.find_turn(principal, parent) if parent else None
    by_id = {turn.id: turn for turn in turns}
    for message in reversed(body.all_messages[:-1]):
        turn = by_id.get(message.id or "") if message.role == "assistant" else _answer_to(message, turns)
        if turn is not None:
            return turn
    return None


def _client_history(services: Services, body: ChatBody) -> tuple[list[Message], list[Attachment]]:
    """Return the client's earlier messages and their files, which a new session keeps from its first turn on."""
    limit = 2 * services.settings.history_turns
    return history_of(body.all_messages[:-1][-limit:]) if limit else ([], [])


def _key(chat: str | None, message: UIMessage, regenerates: bool, replaced: TurnRecord | None) -> str | None:
    """Return an idempotency key that is equal for a repeated request."""
    if not message.id:
        return None
    if regenerates and replaced:
        parts = ["again", replaced.id]
    else:
        parts = ["submit", message.id, message.text, regenerates]
    return "ai_sdk:" + hashlib.sha256(msgspec.json.encode([chat, *parts])).hexdigest()


# Answers

_EXACT, _LARGEST = 2**53, 2**1023


async def answer(services: Services, caller: Caller, record: TurnRecord, message: UIMessage) -> set[str]:
    """Take the answers in a message: decisions, and outputs of the client's tools and of questions.

    Return the ids of the calls and questions. Repeating answers changes nothing. Raises the errors of
    `TurnRunner.decide`, `reply` and `send_tool_result`, HttpError 422.
    """
    state = await turn_state(services.store, record)
    steps = {step.id: step for step in state.steps if step.kind == "tool"}
    questions = {question.id: question for question in state.questions}
    answered: set[str] = set()
    for part in message.parts:
        if (decision := part.decision) is not None:
            call_id = known_call_id(decision.id, steps) or decision.id
            await _decide(services, caller, record, steps.get(call_id), part, decision, call_id)
            answered.add(call_id)
        elif part.has_output and (question := questions.get(part.call_id or "")):
            if question.state == "open":
                await _reply(services, caller, record, question.id, part)
            answered.add(question.id)
        elif part.has_output and (call_id := known_call_id(part.call_id or "", steps)) is not None:
            step = steps[call_id]
            if step.runs_on != "client":
                continue
            if step.state == "running":
                is_error = part.state == "output-error"
                output = part.error_text if is_error else part.output
                await services.runner.send_tool_result(record.id, call_id, output, is_error=is_error)
            answered.add(call_id)
    if not answered:
        raise HttpError(422, "invalid_request", "messages: the turn waits for no answer in the last message")
    return answered


async def _decide(
    services: Services,
    caller: Caller,
    record: TurnRecord,
    step: Step | None,
    part: UIPart,
    decision: ApprovalPart,
    call_id: str,
) -> None:
    if decision.approved is None:
        raise HttpError(422, "invalid_request", "approval: `approved` must be true or false")
    caller.needs("approve")
    args, edited = step.args if step else None, None
    if _as_shown(args) != _as_shown(part.input):
        # A changed input edits the arguments, if the call is editable; otherwise the person saw other arguments.
        args, edited = (None, part.input) if step and step.editable else (part.input, None)
    await services.runner.decide(
        record.id,
        call_id,
        approved=decision.approved,
        reason=decision.reason,
        by=caller.principal,
        args=args,
        edited_args=edited,
    )


async def _reply(services: Services, caller: Caller, record: TurnRecord, question_id: str, part: UIPart) -> None:
    caller.needs("approve")
    declined = part.state == "output-error"
    await services.runner.reply(
        record.id,
        question_id,
        None if declined else part.output,
        declined=declined,
        reason=(part.error_text or "")[:2_000] or None if declined else None,
        by=caller.principal,
    )


def _as_shown(value: Any) -> Any:
    """Return a value as JavaScript reads it: the client shows large numbers rounded, and sends them back so."""
    if isinstance(value, dict):
        return {name: _as_shown(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_shown(item) for item in cast("list[Any]", value)]
    is_large = isinstance(value, int) and not isinstance(value, bool) and _EXACT < abs(value) < _LARGEST
    return float(value) if is_large else value


# Turns of a chat, over HTTP and on a socket


async def start_chat(
    services: Services, caller: Caller, body: ChatBody, key: str | None
) -> tuple[TurnRecord, ResumePoint]:
    """Start the turn that answers a message, or join the one that does already; return it and its start."""
    plan = await plan_for(services, caller.principal, body)
    if plan.joins is not None:
        return plan.joins, ResumePoint(void=await void_of(services.store, plan.joins.id))
    message = chat_message_body(body, plan.session_id, plan.on_busy, plan.options)
    accepted = await start_turn(
        services,
        caller.principal,
        message,
        key or plan.key,
        parent=plan.parent,
        restart=plan.restart,
        history=plan.history,
        history_files=plan.history_files,
    )
    return accepted.record, await find_start(services.store, accepted)


async def continue_chat(
    services: Services, caller: Caller, body: ChatBody, message: UIMessage, wire: AiSdk
) -> tuple[TurnRecord, ResumePoint | None]:
    """Take the answers in a message, whose id is the turn's; return that turn and the point after its wait.

    The point is None if the turn still waits for answers that the client has yet to send.
    """
    record = await services.store.find_turn(caller.principal, message.id or "")
    if body.id is not None:
        session = await services.store.find_session(caller.principal, body.id)
        if session.id != record.session_id:
            raise TurnNotFoundError(record.id)
    answered = await answer(services, caller, record, message)
    point = await find_answer(services.store, record.id, wire, answered)
    return await services.store.find_turn(caller.principal, record.id), point


def still_waiting(turn_id: str) -> list[bytes]:
    """Return the chunks that make a client send the rest of its answers."""
    return [chunk("start", {"messageId": turn_id}), chunk("finish", {"finishReason": "tool-calls"})]


async def find_runs(services: Services, caller: Caller, name: str) -> tuple[list[TurnRecord], int]:
    """Return the unfinished turns of a chat; or the turn of a run, and the position where the run begins.

    Raises SessionNotFoundError, TurnNotFoundError.
    """
    store = services.store
    try:
        session = await store.find_session(caller.principal, name)
    except SessionNotFoundError:
        run = parse_run_id(name)
        if not is_own_id(run.turn_id):
            raise
        return [await store.find_turn(caller.principal, run.turn_id)], run.first
    return await store.unfinished(session.id), 0


async def find_run(services: Services, caller: Caller, name: str) -> tuple[TurnRecord, int] | None:
    """Return the current turn of a chat, or the turn of a run, and the position where the run begins; None without one.

    The newest turn is current, even if it has ended: a client whose connection broke cannot say how much of the answer
    it has, and a replay changes nothing for a client that has all of it. Raises TurnNotFoundError.
    """
    try:
        turns, first = await find_runs(services, caller, name)
        if not turns:
            session = await services.store.find_session(caller.principal, name)
            newest = await services.store.list_turns(caller.principal, session_id=session.id, limit=1)
            turns = [turn for turn in newest if turn.first_kept == 1]
    except SessionNotFoundError:
        return None
    return (turns[-1], first) if turns else None
