"""`/v1/chat/completions` and `/v1/models`: agents as models, for the many clients of that API.

Each call is a session of its own, unless the header `X-Session-Id` names one. In a session without turns, the client's
earlier messages are the agent's history; in any other, the turns of the session are.
"""

from typing import Any

from turnwire.core.errors import ModelOptionNotTakenError
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.server.errors import HttpError
from turnwire.server.request import Request
from turnwire.server.router import Json, Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import START, ResumePoint, find_segment, void_of
from turnwire.server.streams.stream import Stream, stream_turn, turn_headers
from turnwire.server.turns import LAST_PLACE, settled_turn, start_turn
from turnwire.wires.frames import TURN_FAILED
from turnwire.wires.openai.chat.encoder import OpenAIChat, completion, is_cut_off, parse_call_id
from turnwire.wires.openai.conversation import agent_of, find_waiting, interrupting, last_turn, take_answers
from turnwire.wires.openai.messages import (
    ClientConversation,
    CompletionBody,
    check_client_id,
    client_functions,
    format_options,
    openai_error,
    option_not_taken,
    parse_completion_body,
    prompt_body,
    read_messages,
    verdict,
)

_OPTIONS = (
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "presence_penalty",
    "reasoning_effort",
    "temperature",
    "top_p",
    "user",
)


_OPENAI = RouteGroup(
    "openai",
    responses={"200": response("As OpenAI's clients expect it")},
    dialect=openai_error,
    takes_slot=False,
)


@_OPENAI.route(
    "POST",
    "/v1/chat/completions",
    "Send a message, as with OpenAI's Chat Completions API",
    parameters=[
        Parameter("X-Session-Id", "header", "The session of the turn; a new one without it."),
        Parameter("Idempotency-Key", "header", "The same key again joins the same turn."),
    ],
    body=CompletionBody,
    takes_files=True,
)
async def create(request: Request, services: Services) -> Stream | None:
    """Start a turn, or continue one that waits; stream it, or answer when it has ended or waits again."""
    body = parse_completion_body(await request.json_body())
    conversation = read_messages(body.messages)
    if body.stream:
        include_usage = bool((body.stream_options or {}).get("include_usage"))
        wire = OpenAIChat(include_usage=include_usage, is_limited=_is_limited(body))
        with services.streams.room(request.caller.principal):
            record, created = await _begin(request, services, body, conversation)
            point = await _point(services, record, wire, conversation, created)
            return stream_turn(request, services, record, wire, point)
    with services.streams.room(request.caller.principal):
        record, _ = await _begin(request, services, body, conversation)
        answer = await settled_turn(services, request, record)
    if answer is not None:
        record, state = answer
        if not (_is_limited(body) and is_cut_off(state.error)):
            _raise_failure(state)
        result = completion(state, record.created_at // 1000, _start(state, conversation))
        await request.respond_json(200, result, turn_headers(record))
    return None


def _is_limited(body: CompletionBody) -> bool:
    return body.max_tokens is not None or body.max_completion_tokens is not None


async def _point(
    services: Services, record: TurnRecord, wire: OpenAIChat, conversation: ClientConversation, created: bool
) -> ResumePoint:
    if created:
        return START
    if conversation.results and (last := await find_segment(services.store, record.id, wire, lambda _: True)):
        return last
    return ResumePoint(void=await void_of(services.store, record.id))


async def _begin(
    request: Request, services: Services, body: CompletionBody, conversation: ClientConversation
) -> tuple[TurnRecord, bool]:
    """Return the turn of a request, and True if it was created."""
    agent = agent_of(services, body.model)
    if conversation.results:
        return await _continue(request, services, conversation), False
    named = request.header(b"x-session-id")
    session_id = check_client_id("X-Session-Id", named) if named else None
    options = {name: value for name in _OPTIONS if (value := getattr(body, name)) is not None}
    options |= format_options(body)
    if conversation.instructions:
        options["instructions"] = "\n\n".join(conversation.instructions)
    prompt = prompt_body(
        conversation.message or "",
        session_id=session_id,
        model=agent,
        options=options,
        sent=[session_id, conversation.message, conversation.history],
        attachments=conversation.attachments,
        tools=client_functions(body),
    )
    before = await last_turn(services, request.caller, session_id)
    try:
        accepted = await start_turn(
            services,
            request.caller.principal,
            interrupting(prompt, before),
            request.idempotency_key,
            place=LAST_PLACE if before else conversation.place,
        )
    except ModelOptionNotTakenError as error:
        raise option_not_taken(error, body) from None
    return accepted.record, accepted.created


async def _continue(request: Request, services: Services, conversation: ClientConversation) -> TurnRecord:
    """Take the results and decisions, and return the turn that has waited for them."""
    record, results = await find_waiting(services, request.caller, conversation.results, "messages")
    requests = (await fold_log(services.store, record.id)).requests.approval_request
    decisions = {call_id: verdict(result) for call_id, result in results.items() if requests(call_id)}
    outputs = {call_id: result.content for call_id, result in results.items() if call_id not in decisions}
    return await take_answers(services, request.caller, record, decisions, outputs, "messages")


@_OPENAI.route("GET", "/v1/models", "The agents, by name")
async def list_models(request: Request, services: Services) -> Json:
    """Return the agents by name; the first one is the default."""
    return {"object": "list", "data": [_model(name) for name in services.agents]}


@_OPENAI.route("GET", "/v1/models/{id:path}", "An agent", parameters=[Parameter("id", "path", "Its name.")])
async def show_model(request: Request, services: Services) -> Json:
    name = request.params["id"]
    agent_of(services, name)  # Raises an error for an unknown name; `turnwire` is known, as in requests.
    return _model(name)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnwire"}


def _start(state: TurnState, conversation: ClientConversation) -> int:
    """Return where the completion begins in the answer: after the text before the calls that were answered."""
    answered = {parse_call_id(result.call_id or "") for result in conversation.results}
    return max((step.answer_offset for step in state.steps if (state.turn_id, step.id) in answered), default=0)


def _raise_failure(state: TurnState) -> None:
    """Raise HttpError 500 for a failed turn, with a header that stops pointless retries of the client."""
    if state.outcome not in ("failed", "interrupted"):
        return
    error = state.error
    message = error.error if error else TURN_FAILED
    headers = {} if error and error.retryable else {"X-Should-Retry": "false"}
    raise HttpError(500, error.code if error else "turn_failed", message, headers=headers, turn_id=state.turn_id)


def routes() -> list[Route]:
    return _OPENAI.routes
