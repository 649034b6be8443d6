"""Requests for responses of OpenAI's: how one becomes a turn, or a decision about a turn that waits.

Nothing here knows of HTTP but the errors, so that a socket can ask for the same: `begin_response` takes a body, and
gives the turn and the wire that tells its response from the start of the log.
"""

from collections.abc import Mapping
from typing import Any

from turnwire.app import Turnwire
from turnwire.core.errors import AgentNotFoundError, SessionNotFoundError, TurnNotFoundError
from turnwire.core.follow import PAGE
from turnwire.core.state import TurnFold
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.messages import check_id
from turnwire.wires.openai.frames import (
    ECHOED,
    call_of_request,
    parse_response_id,
)
from turnwire.wires.openai.messages import (
    ApprovalItem,
    ClientConversation,
    PromptBody,
    ResponseBody,
    invalid,
    prompt_body,
    read_input,
)
from turnwire.wires.openai.responses_encoder import (
    OpenAIResponses,
)
from turnwire.wires.openai.resume import count_segments, segment_of_decision

DEFAULT_MODEL = "turnwire"


def agent_of(turnwire: Turnwire, model: str | None) -> str | None:
    """The agent that a model's name stands for; None for the first one. Raises AgentNotFoundError."""
    if not model or model in turnwire.agents:
        return model or None
    if model == DEFAULT_MODEL:
        return None
    raise AgentNotFoundError(model)


async def find_response(turnwire: Turnwire, caller: Caller, wanted: str) -> tuple[TurnRecord, OpenAIResponses]:
    """The turn of a response, and the wire that tells it. Raises HttpError 404."""
    turn_id, segment = parse_response_id(wanted) or ("", 1)
    try:
        record = await turnwire.store.find_turn(caller.principal, turn_id)
    except TurnNotFoundError:
        pass
    else:
        if segment == 1 or segment <= await count_segments(turnwire.store, record.id):
            return record, OpenAIResponses(record.options, segment)
    raise HttpError(404, "response_not_found", f"no response has the id {wanted!r}")


async def begin_response(
    turnwire: Turnwire, caller: Caller, body: ResponseBody, idempotency_key: str | None = None
) -> tuple[TurnRecord, OpenAIResponses]:
    """Starts the turn that a request asks for, or goes on with the one that it decides about.

    Raises TurnwireError, HttpError.
    """
    caller.needs("write")
    conversation = read_input(body.input)
    agent = agent_of(turnwire, body.model)
    before = await _turn_before(turnwire, caller, body)
    if conversation.approvals:
        return await _decide(turnwire, caller, before, conversation)
    history = conversation.history if before is None else ()
    prompt = _prompt(body, conversation, agent, before)
    parent = before if body.previous_response_id else None
    accepted = await turnwire.start(caller.principal, prompt, idempotency_key, parent=parent, history=history)
    return accepted.record, OpenAIResponses(accepted.record.options)


async def _turn_before(turnwire: Turnwire, caller: Caller, body: ResponseBody) -> TurnRecord | None:
    """The turn that is continued: the one that is named, or the last of the conversation."""
    if body.previous_response_id:
        if body.conversation:
            raise invalid("previous_response_id", "not together with `conversation`")
        try:
            return (await find_response(turnwire, caller, body.previous_response_id))[0]
        except HttpError as error:
            raise invalid("previous_response_id", str(error), "previous_response_not_found") from None
    return await last_turn(turnwire, caller, _conversation_id(body))


async def last_turn(turnwire: Turnwire, caller: Caller, session_id: str | None) -> TurnRecord | None:
    """The last turn of a session, if there is one of this name and it has turns."""
    if session_id is None:
        return None
    try:
        session = await turnwire.store.find_session(caller.principal, session_id)
    except SessionNotFoundError:
        return None
    turns = await turnwire.store.list_turns(caller.principal, session_id=session.id, limit=1)
    return turns[0] if turns else None


def _conversation_id(body: ResponseBody) -> str | None:
    told = body.conversation
    wanted = told.get("id") if isinstance(told, dict) else told
    if not wanted:
        return None
    try:
        return check_id(str(wanted))
    except HttpError:
        raise invalid("conversation", "an id has up to 128 letters, digits and . _ : @ -") from None


def _prompt(
    body: ResponseBody, conversation: ClientConversation, agent: str | None, before: TurnRecord | None
) -> PromptBody:
    message, conversation_id = conversation.message or "", _conversation_id(body)
    if before is not None and conversation.history:
        # What came before is known here; all that can be new is what the user said.
        if any(said.role != "user" for said in conversation.history):
            raise invalid("input", "send only what is new: what was said before is part of the conversation")
        message = "\n\n".join([*(said.content for said in conversation.history), message])
    told: dict[str, Any] = {name: getattr(body, name, None) for name in ECHOED}
    told["instructions"] = "\n\n".join([*filter(None, [body.instructions]), *conversation.instructions])
    told["conversation"] = conversation_id and {"id": conversation_id}
    prompt = prompt_body(
        message,
        session_id=before.session_id if before else conversation_id,
        model=agent,
        options={name: value for name, value in told.items() if value not in (None, "")},
        sent=[conversation.message, conversation.history],
    )
    return moving_on(prompt, before)


def moving_on(prompt: PromptBody, before: TurnRecord | None) -> PromptBody:
    """Whoever says something else instead of deciding does not wait for the decision."""
    is_waiting = before is not None and before.phase == "waiting"
    return prompt.model_copy(update={"on_busy": "interrupt"}) if is_waiting else prompt


# Decisions


async def _decide(
    turnwire: Turnwire, caller: Caller, record: TurnRecord | None, conversation: ClientConversation
) -> tuple[TurnRecord, OpenAIResponses]:
    if record is None:
        raise invalid("previous_response_id", "name the response that asked for the approval")
    if conversation.message is not None or conversation.history:
        raise invalid("input", "decide first; say what else there is when that response has ended")
    decisions = dict(map(_decision, conversation.approvals))
    record = await take_decisions(turnwire, caller, record, decisions, "input")
    segment = await segment_of_decision(turnwire.store, record.id, next(iter(decisions)))
    return record, OpenAIResponses(record.options, segment)


def _decision(approval: ApprovalItem) -> tuple[str, ApprovalItem]:
    call_id = call_of_request(approval.request_id)
    if call_id is None:
        raise invalid("input", f"{approval.request_id!r} is not the id of a request for approval")
    return call_id, approval


async def take_decisions(
    turnwire: Turnwire, caller: Caller, record: TurnRecord, decisions: Mapping[str, ApprovalItem], param: str
) -> TurnRecord:
    """Decides about calls, by their ids: about all that the turn waits for, or nothing is decided.

    Raises HttpError, ApprovalConflictError, TurnNotWaitingError.
    """
    caller.needs("approve")
    fold, position = TurnFold(), 0
    while events := await turnwire.store.read(record.id, position, PAGE):
        for logged in events:
            fold.add(logged)
        position = events[-1].position
    undecided = [asked.call_id for asked in fold.undecided]
    for call_id in decisions:
        if call_id not in undecided and fold.decision(call_id) is None:
            raise invalid(param, f"{call_id!r} was not asked about")
    missing = [call_id for call_id in undecided if call_id not in decisions]
    if missing and len(missing) < len(undecided):  # Else it is a request that came before, once more.
        raise invalid(param, f"decide about everything at once; {', '.join(map(repr, missing))} is missing")
    for call_id, approval in decisions.items():
        await turnwire.runner.decide(
            record.id, call_id, approved=approval.approved, reason=approval.reason, by=caller.principal
        )
    return await turnwire.store.find_turn(caller.principal, record.id)
