"""`POST /api/chat`, its resumption and its stop button."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnwire.core.log.codec import ascii_json
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError, invalid_request
from turnwire.server.guard import Headers
from turnwire.server.messages import check_id, check_key, parse_fields, parse_json
from turnwire.server.request import Request
from turnwire.server.router import AnyRoute, Json, Parameter, RouteGroup, SocketRoute, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import ResumePoint, void_of
from turnwire.server.streams.socket import REFUSED, SilentWire, SocketHandler
from turnwire.server.streams.stream import STREAM_HEADERS, Stream, location_header, stream_turn, turn_headers
from turnwire.server.turns import stop_turns
from turnwire.wires.ai_sdk.conversation import continue_chat, find_run, find_runs, start_chat, still_waiting
from turnwire.wires.ai_sdk.encoder import DATA, AiSdk, AnswerText, chunks_of
from turnwire.wires.ai_sdk.history import chat_messages
from turnwire.wires.ai_sdk.messages import ChatBody, UIMessage, read_chat
from turnwire.wires.ai_sdk.resume import AnswerSource, RunId, find_chunk
from turnwire.wires.ai_sdk.settings import AiSdkSettings
from turnwire.wires.frames import DONE

_ANSWER_TEXT = AnswerText()
_FIRST_VERSION = 7  # The first that has this transport.
_MAX_REASON_LENGTH = 120  # A close frame has room for 123 bytes.
RequestId = Annotated[str, StringConstraints(min_length=1, max_length=128)]


_CHAT = RouteGroup("ai sdk")
_VERSION = Parameter("sdk_version", "query", "The client's major version: 5, 6 or 7.")
_TEXT = Parameter("stream", "query", "`text` for the bare text of the answer.")
_ID = Parameter("id", "path", "The chat, by the client's id or by ours; or the `x-workflow-run-id` of an answer.")
_STREAM = {"200": response("A UI message stream", "text/event-stream")}
_MESSAGES = {"type": "array", "items": {"$ref": f"#/components/schemas/{UIMessage.__name__}"}}


@_CHAT.route(
    "POST",
    "/api/chat",
    "Send a message, regenerate an answer, or send what a turn waits for, and stream the answer",
    parameters=[_VERSION, _TEXT, Parameter("Idempotency-Key", "header", "As everywhere.")],
    body=ChatBody,
    responses=_STREAM,
    takes_files=True,
)
async def chat(request: Request, services: Services) -> Stream | None:
    """Start a turn, join the one that answers this message already, or continue one that has waited."""
    wire = _wire(request, services)
    body = parse_json(ChatBody, await read_chat(request))
    with services.streams.room(request.caller.principal):
        if (answered := body.answered_message) is not None:
            return await _continue(request, services, body, answered, wire)
        record, point = await start_chat(services, request.caller, body, request.idempotency_key)
        return _stream(request, services, record, point, wire)


async def _continue(
    request: Request, services: Services, body: ChatBody, message: UIMessage, wire: AiSdk
) -> Stream | None:
    """Take the answers in a message, whose id is the turn's, and continue the turn after its wait."""
    record, point = await continue_chat(services, request.caller, body, message, wire)
    if point is None:
        # There is more to answer: these chunks make the client send the rest.
        headers = _headers(request, wire, record, RunId(record.id))
        content_type = b"content-type", wire.media_type.encode("ascii")
        await request.respond(200, b"".join(still_waiting(record.id)) + DONE, [*STREAM_HEADERS, content_type, *headers])
        return None
    return _open(request, services, record, RunId(record.id, point.position), point, wire)


@_CHAT.route(
    "GET",
    "/api/chat/{id}/stream",
    "The answer that is being generated, from its start",
    parameters=[
        _ID,
        _VERSION,
        _TEXT,
        Parameter("startIndex", "query", "The first chunk to send, from the end if it is negative."),
    ],
    responses={**_STREAM, "204": response("No answer is being generated")},
    takes_slot=False,
)
async def resume(request: Request, services: Services) -> Stream | None:
    """Stream the turn that runs in a chat, from its start; or a run, from a chunk."""
    wire, index, name = _wire(request, services), _start_index(request.query), request.id_param()
    found = await find_run(services, request.caller, name)
    if found is None:
        await request.respond(204)
        return None
    record, run = found[0], RunId(found[0].id, found[1])
    with services.streams.room(request.caller.principal):
        if index is None:
            point = ResumePoint(void=await void_of(services.store, record.id))
            return _stream(request, services, record, point, wire)
        point, last = await find_chunk(services.store, run, wire, index)
        request.added.append((b"x-workflow-stream-tail-index", b"%d" % last))
        return _open(request, services, record, run, point, wire)


@_CHAT.route(
    "GET",
    "/api/chat/{id}/messages",
    "The messages of a chat, without the newest answer while it is being generated",
    parameters=[Parameter("id", "path", "The chat, by the client's id or by ours."), _VERSION],
    responses={
        "200": response(
            "UI messages, as the client has built them from the streams",
            "application/json",
            {"type": "object", "required": ["messages"], "properties": {"messages": _MESSAGES}},
        )
    },
)
async def messages(request: Request, services: Services) -> Json:
    """Return the messages of a chat, for a page that is opened again."""
    wire = _wire(request, services)
    async with services.searches.slot(request.caller.principal):
        return {"messages": await chat_messages(services, request.caller, request.id_param(), wire, request.root)}


@_CHAT.route(
    "POST",
    "/api/chat/{id}/stop",
    "Stop the chat's turns that run, wait or are queued; answers when they have stopped",
    parameters=[_ID],
    responses={"200": response("The turns that were stopped", "application/json")},
)
async def stop(request: Request, services: Services) -> Json:
    """Stop all unfinished turns of a chat, or the turn of a run."""
    turns, _ = await find_runs(services, request.caller, request.id_param())
    stopped = await stop_turns(services, turns)
    return {"stopped": [turn.id for turn in stopped]}


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
        raise invalid_request("stream: must be `text`, or left out")
    return _wire_of(request, services.settings.of(AiSdkSettings).version)


def _wire_of(request: Request, version: int) -> AiSdk:
    try:
        return AiSdk.of_query(request.query, version)
    except ValueError as error:
        raise invalid_request(str(error)) from None


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
        raise invalid_request("startIndex: not a number of chunks")
    return int(text)


# The WebSocket


class ChatFrame(BaseModel):
    """A message of the client. The `headers` are those that it would send with an HTTP request."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["send", "resume", "abort"]
    request_id: RequestId = Field(alias="requestId")
    id: str | None = Field(None, max_length=256)
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    trigger: str | None = "submit-message"
    message_id: str | None = Field(None, alias="messageId")
    messages: list[Any] = []

    @property
    def chat(self) -> ChatBody:
        """Return the same as the body of a `POST /api/chat`. Raises HttpError 422."""
        fields = {**self.body, "id": self.id, "messages": self.messages, "trigger": self.trigger}
        return parse_fields(ChatBody, {**fields, "messageId": self.message_id})

    @property
    def key(self) -> str | None:
        """Return the idempotency key. Raises HttpError 422."""
        named = (value for name, value in self.headers.items() if name.lower() == "idempotency-key")
        return check_key(next(named, ""))


class ChatSocket(SocketHandler):
    """One client of `/api/chat/ws`, the AI SDK's `WebSocketChatTransport`.

    It names each request, counts the chunks of each answer from 0, and closes the connection at the first message of an
    unknown type. So the server sends nothing else: WebSocket pings keep an idle socket alive, and a socket that must
    end is closed. A resumed answer is replayed from its start.
    """

    def __init__(self, request: Request, services: Services, acceptance: dict[str, Any]) -> None:
        """Raises HttpError 422."""
        self._chat_wire = _wire_of(request, _FIRST_VERSION)
        super().__init__(request, services, acceptance, SilentWire())

    async def handle(self, data: str | bytes) -> None:
        try:
            frame = parse_json(ChatFrame, data, "message")
        except HttpError as error:
            # An error message would need the name of a request.
            self.socket.close(REFUSED, str(error)[:_MAX_REASON_LENGTH])
            return
        match frame.type:
            case "send":
                await self.perform(frame.request_id, self._start(frame))
            case "resume":
                await self.perform(frame.request_id, self._resume(frame))
            case "abort":
                await self.perform_later(frame.request_id, self._abort(frame))

    async def _start(self, frame: ChatFrame) -> None:
        """Start a turn, join the one that answers this message already, or continue one that has waited."""
        self.caller.needs("write")
        body = frame.chat
        with self.turns.slot() as slot:
            if (answered := body.answered_message) is not None:
                record, point = await continue_chat(self.services, self.caller, body, answered, self._chat_wire)
                if point is None:
                    self.socket.enqueue(_numbered(frame.request_id)(b"".join(still_waiting(record.id))))
                    self._send("end", frame.request_id)
                    return
            else:
                record, point = await start_chat(self.services, self.caller, body, frame.key)
            self._follow(frame.request_id, record, point, slot)

    async def _resume(self, frame: ChatFrame) -> None:
        """Stream the turn that runs in a chat, from its start."""
        self.caller.needs("read")
        found = await find_run(self.services, self.caller, check_id(frame.id or ""))
        if found is None:
            self._send("no-active", frame.request_id)
            return
        with self.turns.slot() as slot:
            record, _ = found
            point = ResumePoint(void=await void_of(self.services.store, record.id))
            self._send("start", frame.request_id)
            self._follow(frame.request_id, record, point, slot)

    async def _abort(self, frame: ChatFrame) -> None:
        """Stop the turn: unlike a lost connection, this is the user's decision."""
        turn_id = self.turns.turn_id(frame.request_id)
        if turn_id is not None:
            self.turns.leave(frame.request_id, by_client=True)
            self.caller.needs("write")
            await self.services.runner.cancel(turn_id)

    def _follow(self, request_id: str, record: TurnRecord, point: ResumePoint, slot: ExitStack) -> None:
        def ended(whole: bool) -> None:
            if whole:
                self._send("end", request_id)
            else:
                self._send("error", request_id, errorText="the connection to the answer was lost; resume it")

        self.turns.follow(
            request_id, record, point, self._chat_wire, slot.pop_all(), to_messages=_numbered(request_id), ended=ended
        )

    def send_error(self, message_id: Any, error: HttpError) -> None:
        self._send("error", message_id, errorText=str(error))

    def _send(self, kind: str, request_id: str, **fields: Any) -> None:
        self.socket.write(ascii_json({"type": kind, "requestId": request_id, **fields}))


def _numbered(request_id: str) -> Callable[[bytes], Iterator[str]]:
    """Return a function that makes messages of chunks, numbered over the whole of a request."""
    name, sequence = ascii_json(request_id).decode(), count()

    def to_messages(body: bytes) -> Iterator[str]:
        for chunk in chunks_of(body):
            data = chunk[DATA:-2].decode("ascii")
            yield f'{{"type":"chunk","requestId":{name},"sequence":{next(sequence)},"chunk":{data}}}'

    return to_messages


def routes() -> list[AnyRoute]:
    summary = "Chats on one WebSocket: the AI SDK's `WebSocketChatTransport`"
    return [*_CHAT.routes, SocketRoute("/api/chat/ws", ChatSocket, summary, _CHAT.tag)]
