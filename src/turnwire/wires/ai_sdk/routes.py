"""`POST /api/chat`, its resumption and its stop button."""

import re

from msgspec.structs import replace

from turnwire.core.errors import SessionNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers
from turnwire.server.request import Request
from turnwire.server.router import AnyRoute, Parameter, Route, SocketRoute, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import ResumePoint, void_of
from turnwire.server.streams.stream import STREAM_HEADERS, Stream, location_header, stream_turn, turn_headers
from turnwire.wires.ai_sdk.conversation import continue_chat, find_run, start_chat, still_waiting, unfinished_turns
from turnwire.wires.ai_sdk.encoder import AiSdk, AnswerText
from turnwire.wires.ai_sdk.frames import END
from turnwire.wires.ai_sdk.messages import ChatBody, UIMessage, parse_chat, read_chat
from turnwire.wires.ai_sdk.resume import AnswerSource, RunId, find_chunk, parse_run_id
from turnwire.wires.ai_sdk.socket import ChatSocket

_ANSWER_TEXT = AnswerText()


async def chat(request: Request, services: Services) -> Stream | None:
    """Start a turn, join the one that answers this message already, or continue one that has waited."""
    request.caller.needs("write")
    wire = _wire(request, services)
    body = parse_chat(await read_chat(request.receive, request.headers, request.added))
    with services.streams.room(request.caller.principal):
        if (decided := body.decision_message) is not None:
            return await _continue(request, services, body, decided, wire)
        record, point = await start_chat(services, request.caller, body, request.idempotency_key)
        return _stream(request, services, record, point, wire)


async def _continue(
    request: Request, services: Services, body: ChatBody, message: UIMessage, wire: AiSdk
) -> Stream | None:
    """Take the decisions in a message, whose id is the turn's, and continue the turn after its wait."""
    record, point = await continue_chat(services, request.caller, body, message, wire)
    if point is None:
        # There is more to decide: this answer makes the client send the rest of its decisions.
        headers = _headers(request, wire, record, RunId(record.id))
        content_type = b"content-type", wire.media_type.encode("ascii")
        await request.respond(200, b"".join(still_waiting(record.id)) + END, [*STREAM_HEADERS, content_type, *headers])
        return None
    return _open(request, services, record, RunId(record.id, point.position), point, wire)


async def resume(request: Request, services: Services) -> Stream | None:
    """Stream the turn that runs in a chat, from its start; or a run, from a chunk."""
    request.caller.needs("read")
    wire, index, name = _wire(request, services), _start_index(request.query), request.id_param()
    run = await find_run(services, request.caller, name)
    if run is None:
        await request.respond(204)
        return None
    record = await services.store.find_turn(request.caller.principal, run.turn_id)
    with services.streams.room(request.caller.principal):
        if index is None:
            point = ResumePoint(void=await void_of(services.store, record.id))
            return _stream(request, services, record, point, wire)
        point, last = await find_chunk(services.store, RunId(record.id, run.first), wire, index)
        request.added.append((b"x-workflow-stream-tail-index", b"%d" % last))
        return _open(request, services, record, run, point, wire)


async def stop(request: Request, services: Services) -> None:
    """Stop a chat, the newest turn first, so that none begins when the one before it ends."""
    caller, name = request.caller, request.id_param()
    caller.needs("write")
    try:
        session = await services.store.find_session(caller.principal, name)
    except SessionNotFoundError:
        run = parse_run_id(name)
        if not is_own_id(run.turn_id):
            raise
        turns = [await services.store.find_turn(caller.principal, run.turn_id)]
    else:
        turns = await unfinished_turns(services, caller.principal, session.id)
    for turn in reversed(turns):
        await services.runner.cancel(turn.id)
    await request.respond_json(200, {"stopped": [turn.id for turn in turns]})


def _stream(request: Request, services: Services, record: TurnRecord, point: ResumePoint, wire: AiSdk) -> Stream:
    """Open the stream of a turn from its start."""
    if request.query.get("stream") == "text":
        source = AnswerSource(services.store, record.id, point.void)
        return Stream(request, services, _ANSWER_TEXT, source, turn_headers(record), record)
    return _open(request, services, record, RunId(record.id), point, wire)


def _open(
    request: Request, services: Services, record: TurnRecord, run: RunId, point: ResumePoint, wire: AiSdk
) -> Stream:
    point = replace(point, rest=wire.opening + point.rest)
    return stream_turn(request, services, record, wire, point, _headers(request, wire, record, run))


def _wire(request: Request, services: Services) -> AiSdk:
    """Return the wire that the query asks for. Raises HttpError 422."""
    if request.query.get("stream", "text") != "text":
        raise HttpError(422, "invalid_request", "stream: only `text`, or nothing")
    try:
        return AiSdk.of_query(request.query, services.settings.ai_sdk_version)
    except ValueError as error:
        raise HttpError(422, "invalid_request", str(error)) from None


def _headers(request: Request, wire: AiSdk, record: TurnRecord, run: RunId) -> Headers:
    """Return the headers of the SDK's own server, and ours."""
    location = f"/v1/turns/{record.id}/events?wire=ai_sdk&sdk_version={wire.sdk_version}"
    # HTTP/2 forbids this header.
    is_http_1 = request.scope.get("http_version", "1.1").startswith("1")
    return [
        *([(b"connection", b"keep-alive")] if is_http_1 else []),
        (b"x-vercel-ai-ui-message-stream", b"v1"),
        (b"x-workflow-run-id", str(run).encode("ascii")),
        *turn_headers(record),
        location_header(request, location),
    ]


def _start_index(query: dict[str, str]) -> int | None:
    """Return the index of the first chunk to send. Raises HttpError 422."""
    text = query.get("startIndex")
    if text is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
        raise HttpError(422, "invalid_request", "startIndex: not a number of chunks")
    return int(text)


_TAG = "ai sdk"
_VERSION = Parameter("sdk_version", "query", "The client's major version: 5, 6 or 7.")
_TEXT = Parameter("stream", "query", "`text` for the bare text of the answer.")
_CHAT = Parameter("id", "path", "The chat, by the client's id or by ours; or the `x-workflow-run-id` of an answer.")
_STREAM = {"200": response("A UI message stream", "text/event-stream")}


def routes() -> list[AnyRoute]:
    return [
        Route(
            "POST",
            "/api/chat",
            chat,
            "Send a message, regenerate an answer, or decide about tool calls, and stream the answer",
            _TAG,
            [_VERSION, _TEXT, Parameter("Idempotency-Key", "header", "As everywhere.")],
            ChatBody,
            _STREAM,
        ),
        Route(
            "GET",
            "/api/chat/{id}/stream",
            resume,
            "The answer that is being generated, from its start",
            _TAG,
            [
                _CHAT,
                _VERSION,
                _TEXT,
                Parameter("startIndex", "query", "The first chunk to send, from the end if it is negative."),
            ],
            responses={**_STREAM, "204": response("No answer is being generated")},
        ),
        Route(
            "POST",
            "/api/chat/{id}/stop",
            stop,
            "Stop the chat's turns that run, wait or are queued; answers when they have stopped",
            _TAG,
            [_CHAT],
            responses={"200": response("The turns that were stopped", "application/json")},
        ),
        SocketRoute("/api/chat/ws", ChatSocket, "Chats on one WebSocket: the AI SDK's `WebSocketChatTransport`", _TAG),
    ]
