"""`/v1/rag`: a session in the path, a question in the body, the answer as JSON or as `three_phase_text`.

These are the routes of an older protocol. They accept its field names beside ours, and report every failure as
`chat_failed`.
"""

from turnwire.server.errors import invalid_request
from turnwire.server.messages import MessageBody
from turnwire.server.request import Request
from turnwire.server.router import Parameter, Route, RouteGroup, response
from turnwire.server.services import Services
from turnwire.server.streams.stream import Stream, stream_from_first_frame
from turnwire.server.turns import budget_header, remaining_budget, start_turn
from turnwire.wires.conversation import respond_with_answer
from turnwire.wires.three_phase_text.encoder import ThreePhaseText
from turnwire.wires.three_phase_text.messages import RagMessageBody

THREE_PHASE_TEXT = ThreePhaseText()
_PATH = "/v1/rag/sessions/{session_id}/messages"
_FAILED = {"500": response("The turn failed: `chat_failed`")}
_RAG = RouteGroup(
    "rag",
    parameters=(
        Parameter("session_id", "path", "Our id, or your own; one of your own is created when it is new."),
        Parameter("Idempotency-Key", "header", "The same key again joins the same turn."),
    ),
    body=RagMessageBody,
    takes_files=True,
)


@_RAG.route(
    "POST",
    _PATH,
    "Send a message to a session, and get the whole answer when it is complete",
    responses={"200": response("The answer", "application/json"), **_FAILED},
)
async def messages(request: Request, services: Services) -> None:
    await respond_with_answer(request, services, await _read_message(request), "chat_failed")


@_RAG.route(
    "POST",
    f"{_PATH}/stream",
    "Send a message to a session, and stream events, the answer and its citations as plain text",
    responses={"200": response("`three_phase_text`", "text/plain"), **_FAILED},
)
async def messages_stream(request: Request, services: Services) -> Stream:
    """Start or join a turn, and stream it."""
    body = await _read_message(request)
    with services.streams.room(request.caller.principal):
        accepted = await start_turn(services, request.caller.principal, body, request.idempotency_key)
        request.added += budget_header(await remaining_budget(services, request.caller.principal))
        return stream_from_first_frame(request, services, accepted.record, THREE_PHASE_TEXT)


async def _read_message(request: Request) -> MessageBody:
    """Return the message, in the session of the path. Raises HttpError 4xx."""
    session_id = request.id_param("session_id")
    body = await request.parse_body(RagMessageBody)
    if body.session_id not in (None, session_id):
        raise invalid_request("session_id: not the one in the path; leave it out")
    return body.model_copy(update={"session_id": session_id})


def routes() -> list[Route]:
    return _RAG.routes
