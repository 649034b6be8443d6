"""A message's place in a chat: the turn it continues, the answer it replaces, the request it repeats.

The client's messages have ids: each turn keeps the id of the user's message it answers, and an assistant's message has
the id of its turn. So a new turn continues the conversation that the client shows.
"""

import hashlib
from typing import Any, cast

import msgspec

from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.log.turns import Step, TurnRecord
from turnwire.core.people.suspension import Answer, ClientResultAnswer, DecisionAnswer, ReplyAnswer
from turnwire.server.auth import Caller
from turnwire.server.errors import invalid_request
from turnwire.server.services import Services
from turnwire.server.streams.resume import ResumePoint, find_start, void_of
from turnwire.server.turns import Place, last_turns, on_busy_for, start_turn, turn_state
from turnwire.wires.ai_sdk.encoder import AiSdk, chunk
from turnwire.wires.ai_sdk.messages import ApprovalPart, ChatBody, UIMessage, UIPart, chat_message_body, history_of
from turnwire.wires.ai_sdk.resume import find_answer, parse_run_id
from turnwire.wires.conversation import MAX_TURNS, find_turn_in, kept_messages, record_answers
from turnwire.wires.frames import known_call_id, omit_none

# Turns of a chat, over HTTP and on a socket


async def start_chat(
    services: Services, caller: Caller, body: ChatBody, key: str | None
) -> tuple[TurnRecord, ResumePoint]:
    """Start the turn that answers a message, or join the one that does already; return it and its start."""
    principal, question = caller.principal, body.question
    session_id = body.id or await _session_of(services, principal, body)
    turns = await last_turns(services, principal, session_id, MAX_TURNS)
    replaced = _replaced(body, turns)
    regenerated = replaced if body.regenerates else None
    if regenerated and regenerated.id != body.message_id and _is_regenerating(regenerated):
        return regenerated, ResumePoint(void=await void_of(services.store, regenerated.id))
    options = omit_none(message_id=question.id or None, regenerates=regenerated.id if regenerated else None)
    on_busy = body.on_busy or ("interrupt" if replaced else await on_busy_for(services, turns))
    accepted = await start_turn(
        services,
        principal,
        chat_message_body(body, session_id, on_busy, options),
        key or _key(session_id, body, regenerated),
        place=await _place(services, principal, body, turns, replaced),
    )
    return accepted.record, await find_start(services.store, accepted)


async def _session_of(services: Services, principal: str, body: ChatBody) -> str | None:
    """Return the session of a chat without an id, by an answer of ours in it; None if it is new."""
    for message in reversed(body.all_messages):
        if message.role == "assistant" and message.id and is_own_id(message.id):
            try:
                return (await services.store.find_turn(principal, message.id)).session_id
            except TurnNotFoundError:
                continue
    return None


def _replaced(body: ChatBody, turns: list[TurnRecord]) -> TurnRecord | None:
    """Return the turn whose answer is regenerated, or whose message was edited."""
    question = body.question
    if not body.regenerates and (body.message_id is None or body.message_id != question.id):
        return None
    named = next((turn for turn in turns if body.regenerates and turn.id == body.message_id), None)
    return named or _answer_to(question, turns)


def _answer_to(message: UIMessage, turns: list[TurnRecord]) -> TurnRecord | None:
    return next((turn for turn in reversed(turns) if message.id and question_id(turn) == message.id), None)


def question_id(turn: TurnRecord) -> str:
    """Return the id of the message that a turn answers: the client's, or ours for one of another protocol."""
    return turn.options.get("message_id") or f"{turn.id}-question"


def _is_regenerating(turn: TurnRecord) -> bool:
    return turn.phase != "ended" and "regenerates" in turn.options


async def _place(
    services: Services, principal: str, body: ChatBody, turns: list[TurnRecord], replaced: TurnRecord | None
) -> Place:
    """Return the place of a message: instead of the replaced turn, after the newest known message, or in a new chat."""
    earlier = body.all_messages[:-1]
    if replaced is not None:
        parent_id = replaced.parent_turn_id
        parent = await services.store.find_turn(principal, parent_id) if parent_id else None
        return Place(parent=parent, restart=parent is None)
    if not turns:
        return history_of(kept_messages(services, earlier)).place
    by_id = {turn.id: turn for turn in turns}
    found = (
        by_id.get(each.id or "") if each.role == "assistant" else _answer_to(each, turns) for each in earlier[::-1]
    )
    return Place(parent=next(filter(None, found), None))


def _key(chat: str | None, body: ChatBody, regenerated: TurnRecord | None) -> str | None:
    """Return an idempotency key that is equal for a repeated request."""
    question = body.question
    if not question.id:
        return None
    parts = ["again", regenerated.id] if regenerated else ["submit", question.id, question.text, body.regenerates]
    return "ai_sdk:" + hashlib.sha256(msgspec.json.encode([chat, *parts])).hexdigest()


async def continue_chat(
    services: Services, caller: Caller, body: ChatBody, message: UIMessage, wire: AiSdk
) -> tuple[TurnRecord, ResumePoint | None]:
    """Take the answers in a message, whose id is the turn's; return that turn and the point after its wait.

    The point is None if the turn still waits for answers that the client has yet to send.
    """
    record = await find_turn_in(services, caller, message.id or "", body.id)
    answers, answered = await _read_answers(services, caller, record, message)
    record = await record_answers(services, caller, record, answers)
    return record, await find_answer(services.store, record.id, wire, answered)


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
    except SessionNotFoundError:
        return None
    if not turns:
        newest = await last_turns(services, caller.principal, name, limit=1)
        turns = [turn for turn in newest if turn.first_kept == 1]
    return (turns[-1], first) if turns else None


# Answers

_EXACT, _LARGEST = 2**53, 2**1023


async def _read_answers(
    services: Services, caller: Caller, record: TurnRecord, message: UIMessage
) -> tuple[list[Answer], set[str]]:
    """Return the answers in a message that the turn still needs, and the ids of all calls and questions it answers.

    They are decisions, and outputs of the client's tools and of questions. Raises HttpError 422.
    """
    state = await turn_state(services.store, record)
    steps = {step.id: step for step in state.steps if step.kind == "tool"}
    questions = {question.id: question for question in state.questions}
    answers: list[Answer] = []
    answered: set[str] = set()
    for part in message.parts:
        call_id = part.call_id or ""
        if (decision := part.decision) is not None:
            call_id = known_call_id(decision.id, steps) or decision.id
            answers.append(_decision(steps.get(call_id), call_id, part, decision, caller.principal))
        elif not part.has_output:
            continue
        elif call_id in questions:
            if questions[call_id].state == "open":
                answers.append(_reply(call_id, part, caller.principal))
        elif (known := known_call_id(call_id, steps)) is not None and steps[known].runs_on == "client":
            call_id = known
            if steps[known].state == "running":
                answers.append(_result(known, part))
        else:
            continue
        answered.add(call_id)
    if not answered:
        raise invalid_request("messages: the turn waits for no answer in the last message")
    return answers, answered


def _decision(step: Step | None, call_id: str, part: UIPart, decision: ApprovalPart, by: str) -> DecisionAnswer:
    if decision.approved is None:
        raise invalid_request("approval: `approved` must be true or false")
    args, edited = step.args if step else None, None
    if _as_shown(args) != _as_shown(part.input):
        # A changed input edits the arguments, if the call is editable; otherwise the person saw other arguments.
        args, edited = (None, part.input) if step and step.editable else (part.input, None)
    reason = decision.reason
    return DecisionAnswer(
        call_id=call_id, approved=decision.approved, reason=reason, by=by, args=args, edited_args=edited
    )


def _reply(question_id: str, part: UIPart, by: str) -> ReplyAnswer:
    if part.state != "output-error":
        return ReplyAnswer(question_id=question_id, value=part.output, by=by)
    reason = (part.error_text or "")[:2_000] or None
    return ReplyAnswer(question_id=question_id, declined=True, reason=reason, by=by)


def _result(call_id: str, part: UIPart) -> ClientResultAnswer:
    is_error = part.state == "output-error"
    return ClientResultAnswer(call_id=call_id, output=part.error_text if is_error else part.output, is_error=is_error)


def _as_shown(value: Any) -> Any:
    """Return a value as JavaScript reads it: the client shows large numbers rounded, and sends them back so."""
    if isinstance(value, dict):
        return {name: _as_shown(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_shown(item) for item in cast("list[Any]", value)]
    is_large = isinstance(value, int) and not isinstance(value, bool) and _EXACT < abs(value) < _LARGEST
    return float(value) if is_large else value
