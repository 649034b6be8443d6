"""`/v1/responses`: turns as OpenAI responses, to create, read again, continue, stop and delete.

Every turn is a response, however it was started: `resp_<turn id>`. A turn that waited has another response for each
time that it continued: `resp_<turn id>_2` …
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnwire.core.log.codec import ascii_json
from turnwire.core.log.events import ToolResultEvent
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError, internal_error, invalid_request
from turnwire.server.messages import parse_count, parse_json
from turnwire.server.request import Request
from turnwire.server.router import AnyRoute, Json, Parameter, RouteGroup, SocketRoute, response
from turnwire.server.services import Services
from turnwire.server.streams.resume import START, ResumePoint
from turnwire.server.streams.socket import SilentWire, SocketHandler
from turnwire.server.streams.stream import Stream, location_header, stream_turn, turn_headers
from turnwire.server.turns import while_connected
from turnwire.wires.openai.conversation import begin_response, find_response
from turnwire.wires.openai.messages import ResponseBody, invalid, openai_error, parse_response_body
from turnwire.wires.openai.responses.encoder import OpenAIResponses
from turnwire.wires.openai.responses.frames import decision_item, input_items, output_item, response_id
from turnwire.wires.openai.responses.resume import find_in_response, read_segments, response_so_far, settled_response

_MAX_ITEMS = 100
_DATA = b"data: "
_END = b"[DONE]"
_MAX_QUEUED = 8

_OPENAI = RouteGroup(
    "openai",
    responses={"200": response("As OpenAI's clients expect it")},
    dialect=openai_error,
    takes_slot=False,
)
_ID = Parameter("id", "path", "`resp_<turn id>`")


@_OPENAI.route(
    "POST",
    "/v1/responses",
    "Send a message, as with OpenAI's Responses API",
    parameters=[Parameter("Idempotency-Key", "header", "The same key again joins the same turn.")],
    body=ResponseBody,
    takes_files=True,
)
async def create(request: Request, services: Services) -> Stream | None:
    """Start a turn, or continue one that waits; stream the response, or answer with it when it is over."""
    body, key = parse_response_body(await request.json_body()), request.idempotency_key
    store = services.store
    if body.stream:
        with services.streams.room(request.caller.principal):
            record, wire, created = await begin_response(services, request.caller, body, key)
            point = START if created else await find_in_response(store, record, wire, 0)
            return _stream(request, services, record, wire, point)
    with services.streams.room(request.caller.principal):
        record, wire, created = await begin_response(services, request.caller, body, key)
        if body.background:
            result = await response_so_far(store, record, wire)
        else:
            waiting = settled_response(store, record.id, wire, created=created)
            result = await while_connected(services, request.receive, record, waiting)
    if result is not None:
        await request.respond_json(200, result, turn_headers(record))
    return None


@_OPENAI.route(
    "GET",
    "/v1/responses/{id}",
    "A response so far, or its stream",
    parameters=[
        _ID,
        Parameter("stream", "query", "`true` for the stream."),
        Parameter("starting_after", "query", "The `sequence_number` of the last event you have."),
    ],
)
async def show(request: Request, services: Services) -> Stream | None:
    """Answer with a response so far; or stream it, from the start or after an event."""
    query = request.query
    record, wire = await find_response(services, request.caller, request.params["id"])
    if query.get("stream") == "true":
        count = _starting_after(query) + 1
        with services.streams.room(request.caller.principal):
            point = await find_in_response(services.store, record, wire, count)
            return _stream(request, services, record, wire, point)
    async with services.requests.slot(request.caller.principal):
        await request.respond_json(200, await response_so_far(services.store, record, wire), turn_headers(record))
        await request.answer_taken(services.settings.write_timeout)
    return None


@_OPENAI.route("POST", "/v1/responses/{id}/cancel", "Stop a response; answers when it has stopped", parameters=[_ID])
async def cancel(request: Request, services: Services) -> None:
    """Stop the turn, and answer when it has stopped, also if it had before."""
    record, wire = await find_response(services, request.caller, request.params["id"])
    await services.runner.cancel(record.id)
    record = await services.store.find_turn(request.caller.principal, record.id)
    await request.respond_json(200, await response_so_far(services.store, record, wire), turn_headers(record))


@_OPENAI.route("DELETE", "/v1/responses/{id}", "Delete a response, its turn and its log", parameters=[_ID])
async def delete(request: Request, services: Services) -> Json:
    """Delete the turn and its log; with the last turn of a conversation, the conversation too."""
    name, store, principal = request.params["id"], services.store, request.caller.principal
    record, _ = await find_response(services, request.caller, name)
    await services.runner.cancel(record.id)
    await store.delete_turn(principal, record.id)
    if not await store.list_turns(principal, session_id=record.session_id, limit=1):
        await store.delete_session(principal, record.session_id)
    return {"id": name, "object": "response", "deleted": True}


@_OPENAI.route(
    "GET",
    "/v1/responses/{id}/input_items",
    "What the client sent for a response",
    parameters=[
        _ID,
        Parameter("order", "query", "`asc`, or `desc`, which is the default."),
        Parameter("after", "query", "The last id of the page before."),
        Parameter("limit", "query", "The largest number of items, 20 by default."),
    ],
    takes_slot=True,
)
async def list_input_items(request: Request, services: Services) -> Json:
    """Return what the client sent: the message and its history, or the answers to calls."""
    record, wire = await find_response(services, request.caller, request.params["id"])
    items = await _input_items(services, record, wire.segment)
    if request.query.get("order", "desc") != "asc":
        items.reverse()
    return _page(items, request.query)


async def _input_items(services: Services, record: TurnRecord, segment: int) -> list[dict[str, Any]]:
    if segment == 1:
        return input_items(record)
    return [
        output_item(record.id, answer) if isinstance(answer, ToolResultEvent) else decision_item(record.id, answer)
        for number, answer in (await read_segments(services.store, record.id)).answers
        if number == segment
    ]


# Without these routes, `compact` and `input_tokens` would be taken for ids of responses.


@_OPENAI.route("POST", "/v1/responses/compact", "Not supported: a 404 that says so", access="any key")
async def compact(request: Request, services: Services) -> None:
    raise HttpError(404, "not_found", "responses are not compacted here: the agent decides what its model gets")


@_OPENAI.route("POST", "/v1/responses/input_tokens", "Not supported: a 404 that says so", access="any key")
async def count_input_tokens(request: Request, services: Services) -> None:
    raise HttpError(404, "not_found", "tokens are not counted here: an agent may call several models; see `usage`")


def _stream(
    request: Request, services: Services, record: TurnRecord, wire: OpenAIResponses, point: ResumePoint
) -> Stream:
    path = f"/v1/responses/{response_id(record.id, wire.segment)}?stream=true"
    headers = [*turn_headers(record), location_header(request, path)]
    return stream_turn(request, services, record, wire, point, headers)


def _starting_after(query: dict[str, str]) -> int:
    """Return the number of the last event that the client has; -1 for none."""
    text = query.get("starting_after")
    if text is None:
        return -1
    number = parse_count(text)
    if number is None:
        raise invalid("starting_after", "not the sequence_number of an event")
    return number


def _page(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    limit = parse_count(query.get("limit", "20"))
    if limit is None or not 1 <= limit <= _MAX_ITEMS:
        raise invalid("limit", f"a number from 1 to {_MAX_ITEMS}")
    ids = [item["id"] for item in items]
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise invalid("after", "no item has this id")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


# The WebSocket


class CreateMessage(BaseModel):
    """A message of the client; its other fields are the body of a request."""

    model_config = ConfigDict(extra="allow")

    type: str
    stream_id: str | None = Field(None, max_length=128)


class ResponseSocket(SocketHandler):
    """One client of `/v1/responses` as a WebSocket.

    Every `response.create` has the fields of a `POST /v1/responses`, and every event is one of that route's stream.
    Requests with the same `stream_id` are answered one at a time, and wait in its queue; different streams do not wait
    for each other.
    """

    def __init__(self, request: Request, services: Services, acceptance: dict[str, Any]) -> None:
        super().__init__(request, services, acceptance, SilentWire())
        self._queues: dict[str | None, deque[CreateMessage]] = {}

    async def handle(self, data: str | bytes) -> None:
        try:
            message = parse_json(CreateMessage, data, "message")
        except HttpError as error:
            self.send_error(None, error)
            return
        stream_id = message.stream_id
        if message.type != "response.create":
            self.send_error(stream_id, invalid_request("type: must be `response.create`"))
        elif stream_id not in self._queues:
            self._queues[stream_id] = deque()
            await self._create_or_skip(message)
        elif len(queue := self._queues[stream_id]) < _MAX_QUEUED:
            queue.append(message)
        else:
            self.send_error(
                stream_id, HttpError(429, "too_many_turns", "the stream's queue is full; wait for a response")
            )

    async def _create_or_skip(self, message: CreateMessage) -> None:
        """Begin a response, or the next one of the stream if this one is refused."""
        await self.perform(message.stream_id, self._create(message))
        if self.turns.turn_id(_name(message.stream_id)) is None:
            await self._create_next(message.stream_id)

    async def _create_next(self, stream_id: str | None) -> None:
        if self.socket.is_finished:
            return  # Nobody would read the responses.
        if queue := self._queues.get(stream_id):
            await self._create_or_skip(queue.popleft())
        else:
            self._queues.pop(stream_id, None)

    async def _create(self, message: CreateMessage) -> None:
        body = parse_response_body(message.model_extra or {})
        with self.turns.slot() as slot:
            record, wire, created = await begin_response(self.services, self.caller, body)
            point = START if created else await find_in_response(self.services.store, record, wire, 0)
            self.turns.follow(
                _name(message.stream_id),
                record,
                point,
                wire,
                slot.pop_all(),
                to_messages=_with_stream_id(message.stream_id),
                ended=lambda whole: self._end(message.stream_id, whole),
            )

    def _end(self, stream_id: str | None, whole: bool) -> None:
        if not whole:
            self.send_error(stream_id, internal_error())
        self.spawn(stream_id, self._create_next(stream_id))

    def send_error(self, message_id: Any, error: HttpError) -> None:
        error = openai_error(error)
        stream = {} if message_id is None else {"stream_id": message_id}
        body = ascii_json({"type": "error", "status": error.status, **stream})
        self.socket.write(body[:-1] + b"," + error.body[1:])


def _name(stream_id: str | None) -> str:
    return "" if stream_id is None else f"stream {stream_id}"


def _with_stream_id(stream_id: str | None) -> Callable[[bytes], Iterator[str]]:
    """Return a function that makes messages of frames, each with the id of its stream, if it has one."""
    end = "}" if stream_id is None else f',"stream_id":{ascii_json(stream_id).decode()}}}'

    def to_messages(body: bytes) -> Iterator[str]:
        for line in body.split(b"\n"):
            if line.startswith(_DATA) and not line.endswith(_END):
                yield line[len(_DATA) : -1].decode("ascii") + end

    return to_messages


def routes() -> list[AnyRoute]:
    return [*_OPENAI.routes, SocketRoute("/v1/responses", ResponseSocket)]
