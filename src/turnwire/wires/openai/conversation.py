"""Requests for OpenAI responses: each starts a turn, or answers what a turn waits for.

HTTP routes and sockets share this module, which knows of HTTP only the errors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnwire.core.errors import AgentNotFoundError, ModelOptionNotTakenError, TurnNotFoundError
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import Message, TurnRecord
from turnwire.core.people.suspension import Answer, ClientResultAnswer, DecisionAnswer
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.services import Services
from turnwire.server.turns import Place, last_turns, start_turn
from turnwire.wires.conversation import missing_answers, record_answers
from turnwire.wires.openai.chat.encoder import parse_call_id
from turnwire.wires.openai.messages import (
    ApprovalItem,
    ClientConversation,
    PromptBody,
    ResponseBody,
    check_client_id,
    client_functions,
    format_options,
    invalid,
    option_not_taken,
    prompt_body,
    read_input,
)
from turnwire.wires.openai.responses.encoder import OpenAIResponses
from turnwire.wires.openai.responses.frames import (
    ECHOED,
    SERVER_CALLS,
    call_of_request,
    parse_response_id,
)
from turnwire.wires.openai.responses.resume import read_segments
from turnwire.wires.openai.settings import OpenAISettings

DEFAULT_MODEL = "turnwire"


def agent_of(services: Services, model: str | None) -> str | None:
    """Return the agent of a model name; None for the default one. Raises AgentNotFoundError."""
    if not model or model in services.agents:
        return model or None
    if model == DEFAULT_MODEL:
        return None
    raise AgentNotFoundError(model)


async def find_response(services: Services, caller: Caller, name: str) -> tuple[TurnRecord, OpenAIResponses]:
    """Return the turn and the wire of a response. Raises HttpError 404."""
    turn_id, segment = parse_response_id(name) or ("", 1)
    try:
        record = await services.store.find_turn(caller.principal, turn_id)
    except TurnNotFoundError:
        pass
    else:
        if segment == 1 or segment <= (await read_segments(services.store, record.id)).count:
            return record, OpenAIResponses(record.options, segment)
    raise HttpError(404, "response_not_found", f"no response has the id {name!r}")


async def begin_response(
    services: Services, caller: Caller, body: ResponseBody, idempotency_key: str | None = None
) -> tuple[TurnRecord, OpenAIResponses, bool]:
    """Start a turn, or answer one that waits; return it, its wire, and True if it was created.

    Raises TurnwireError, HttpError.
    """
    caller.needs("write")
    conversation = read_input(body.input)
    agent = agent_of(services, body.model)
    before = await _turn_before(services, caller, body)
    if conversation.approvals or conversation.results:
        return (*await _answer(services, caller, before, conversation), False)
    form = "mcp_call" if "mcp_call" in (body.include or ()) else services.settings.of(OpenAISettings).server_calls
    prompt = _prompt(body, conversation, agent, before, {SERVER_CALLS: form} if form == "mcp_call" else {})
    place = Place(parent=before if body.previous_response_id else None) if before else conversation.place
    try:
        accepted = await start_turn(services, caller.principal, prompt, idempotency_key, place=place)
    except ModelOptionNotTakenError as error:
        raise option_not_taken(error, body) from None
    return accepted.record, OpenAIResponses(accepted.record.options), accepted.created


async def _turn_before(services: Services, caller: Caller, body: ResponseBody) -> TurnRecord | None:
    """Return the turn that is continued: the named one, or the last of the conversation."""
    if body.previous_response_id:
        if body.conversation:
            raise invalid("previous_response_id", "not together with `conversation`")
        try:
            return (await find_response(services, caller, body.previous_response_id))[0]
        except HttpError as error:
            raise invalid("previous_response_id", str(error), "previous_response_not_found") from None
    return await last_turn(services, caller, _conversation_id(body))


async def last_turn(services: Services, caller: Caller, session_id: str | None) -> TurnRecord | None:
    """Return the last turn of a session; None if there is no such session, or no turn in it."""
    turns = await last_turns(services, caller.principal, session_id, limit=1)
    return turns[0] if turns else None


def _conversation_id(body: ResponseBody) -> str | None:
    conversation = body.conversation
    name = conversation.get("id") if isinstance(conversation, dict) else conversation
    return check_client_id("conversation", str(name)) if name else None


def _prompt(
    body: ResponseBody,
    conversation: ClientConversation,
    agent: str | None,
    before: TurnRecord | None,
    more: Mapping[str, Any],
) -> PromptBody:
    message, conversation_id = conversation.message or "", _conversation_id(body)
    attachments = conversation.attachments
    if before is not None and conversation.history:
        # The server has the earlier messages, so only messages of the user can be new.
        if any(earlier.role != "user" for earlier in conversation.history):
            raise invalid("input", "send only new messages: the conversation has the earlier ones")
        message = "\n\n".join([*(earlier.content for earlier in conversation.history), message])
        attachments = (*conversation.history_files, *attachments)
    options: dict[str, Any] = {name: getattr(body, name, None) for name in ECHOED}
    options["instructions"] = "\n\n".join([*filter(None, [body.instructions]), *conversation.instructions])
    options["conversation"] = conversation_id and {"id": conversation_id}
    options |= {**format_options(body), **more}
    prompt = prompt_body(
        message,
        session_id=before.session_id if before else conversation_id,
        model=agent,
        options={name: value for name, value in options.items() if value not in (None, "")},
        sent=[conversation.message, conversation.history],
        attachments=attachments,
        tools=client_functions(body),
    )
    return interrupting(prompt, before)


def interrupting(prompt: PromptBody, before: TurnRecord | None) -> PromptBody:
    """Return a prompt that interrupts the turn before if it waits: the user writes instead of deciding."""
    is_waiting = before is not None and before.phase == "waiting"
    return prompt.model_copy(update={"on_busy": "interrupt"}) if is_waiting else prompt


# Answers


async def find_waiting(
    services: Services, caller: Caller, results: Sequence[Message], param: str
) -> tuple[TurnRecord, dict[str, Message]]:
    """Return the turn that has made the calls of these results, and the results by call id. Raises HttpError 400."""
    calls = [parse_call_id(result.call_id or "") or ("", "") for result in results]
    if len({turn_id for turn_id, _ in calls}) > 1:
        raise invalid(param, "answer the calls of one turn at a time")
    try:
        record = await services.store.find_turn(caller.principal, calls[0][0])
    except TurnNotFoundError:
        raise invalid(param, "no turn of yours has calls with these ids") from None
    return record, {call_id: result for (_, call_id), result in zip(calls, results, strict=True)}


async def _answer(
    services: Services, caller: Caller, record: TurnRecord | None, conversation: ClientConversation
) -> tuple[TurnRecord, OpenAIResponses]:
    if conversation.message is not None or conversation.history:
        raise invalid("input", "send answers alone, and other messages when that response has ended")
    outputs: dict[str, str] = {}
    if conversation.results:
        waiting, results = await find_waiting(services, caller, conversation.results, "input")
        if conversation.approvals and record is not None and record.id != waiting.id:
            raise invalid("input", "answer the calls of one turn at a time")
        record, outputs = waiting, {call_id: result.content for call_id, result in results.items()}
    if record is None:
        raise invalid("previous_response_id", "name the response that asked for the approval")
    decisions = dict(map(_decision, conversation.approvals))
    record = await take_answers(services, caller, record, decisions, outputs, "input")
    segments = await read_segments(services.store, record.id)
    segment = segments.answered_in(next(iter([*decisions, *outputs])))
    return record, OpenAIResponses(record.options, segment)


def _decision(approval: ApprovalItem) -> tuple[str, ApprovalItem]:
    call_id = call_of_request(approval.request_id)
    if call_id is None:
        raise invalid("input", f"{approval.request_id!r} is not the id of a request for approval")
    return call_id, approval


async def take_answers(
    services: Services,
    caller: Caller,
    record: TurnRecord,
    decisions: Mapping[str, ApprovalItem],
    outputs: Mapping[str, str],
    param: str,
) -> TurnRecord:
    """Take decisions and results of the client's tools by call id: all that the turn waits for, or none.

    Raises HttpError, ApprovalConflictError, ReplyConflictError, TurnNotWaitingError.
    """
    fold = await fold_log(services.store, record.id)
    undecided = [request.call_id for request in fold.requests.undecided]
    open_ids = [*undecided, *(call.call_id for call in fold.requests.open_client_calls)]
    for call_id in decisions:
        if call_id not in undecided and fold.decision(call_id) is None:
            raise invalid(param, f"there is no request for approval of {call_id!r}")
    for call_id in outputs:
        if fold.requests.client_calls.get(call_id) is None:
            raise invalid(param, f"there is no request for approval of {call_id!r}, and no such call of your functions")
    if missing := missing_answers(open_ids, {*decisions, *outputs}):
        raise invalid(param, f"answer everything that is open at once; missing: {', '.join(map(repr, missing))}")
    answers: list[Answer] = [ClientResultAnswer(call_id=call_id, output=output) for call_id, output in outputs.items()]
    answers += [
        DecisionAnswer(call_id=call_id, approved=approval.approved, reason=approval.reason, by=caller.principal)
        for call_id, approval in decisions.items()
    ]
    return await record_answers(services, caller, record, answers)
