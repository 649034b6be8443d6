"""`/v1/responses` as a WebSocket: responses one after the other, without a request for each.

Every `response.create` has the fields of a `POST /v1/responses`, and every event is one of that route's stream.
Requests with the same `stream_id` are answered one at a time; different streams do not wait for each other.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnwire.core.codec import ascii_json
from turnwire.server.errors import HttpError, internal_error
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.resume import START
from turnwire.server.streams.socket import SilentWire, SocketHandler
from turnwire.wires.openai.conversation import begin_response
from turnwire.wires.openai.messages import openai_error, parse_response_body
from turnwire.wires.openai.resume import find_in_response
from turnwire.wires.websocket.routes import parse

_DATA = b"data: "
_END = b"[DONE]"
_MAX_QUEUED = 8


class CreateMessage(BaseModel):
    """A message of the client; its other fields are the body of a request."""

    model_config = ConfigDict(extra="allow")

    type: str
    stream_id: str | None = Field(None, max_length=128)


class ResponseSocket(SocketHandler):
    """One client. Requests of a busy stream wait in its queue."""

    def __init__(self, request: Request, services: Services, acceptance: dict[str, Any]) -> None:
        super().__init__(request, services, acceptance, SilentWire())
        self._queues: dict[str | None, deque[CreateMessage]] = {}

    async def handle(self, data: str | bytes) -> None:
        try:
            message = parse(CreateMessage, data)
        except HttpError as error:
            self.send_error(None, error)
            return
        stream_id = message.stream_id
        if message.type != "response.create":
            self.send_error(stream_id, HttpError(422, "invalid_request", "type: only `response.create` is known here"))
        elif stream_id not in self._queues:
            self._queues[stream_id] = deque()
            await self._create_or_skip(message)
        elif len(queue := self._queues[stream_id]) < _MAX_QUEUED:
            queue.append(message)
        else:
            self.send_error(stream_id, HttpError(429, "too_many_turns", "the stream's queue is full; wait"))

    async def _create_or_skip(self, message: CreateMessage) -> None:
        """Begin a response, or the next one of the stream if this one is refused."""
        await self.perform(message.stream_id, self._create(message))
        if self.turns.turn_id(_name(message.stream_id)) is None:
            await self._create_next(message.stream_id)

    async def _create_next(self, stream_id: str | None) -> None:
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
