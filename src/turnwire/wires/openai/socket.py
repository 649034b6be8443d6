"""`/v1/responses` as a WebSocket: responses one after the other, without a request for each.

Every `response.create` has the fields of a `POST /v1/responses`, and every event is one of that stream's. Requests of
one lane, which `stream_id` names, are answered one at a time; lanes do not wait for each other.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnwire.app import Turnwire
from turnwire.core.codec import ascii_json
from turnwire.core.contracts import Control
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, internal_error
from turnwire.server.exchange import Request
from turnwire.server.streams.socket import SocketTalk
from turnwire.wires.openai.conversation import begin_response
from turnwire.wires.openai.messages import in_dialect, parse_response_body
from turnwire.wires.openai.responses_encoder import OpenAIResponses
from turnwire.wires.openai.resume import place_of_response
from turnwire.wires.websocket.routes import parse

PATH = "/v1/responses"
_DATA = b"data: "
_END = b"[DONE]"
_MOST_WAITING = 8


class CreateMessage(BaseModel):
    """The rest of it is the body of a request."""

    model_config = ConfigDict(extra="allow")

    type: str
    stream_id: str | None = Field(None, max_length=128)


class _SilentResponsesWire(OpenAIResponses):
    """For the socket itself: the protocol's own pings keep it alive."""

    heartbeat = b""

    def control(self, control: Control) -> None:
        return None


class ResponseSocket(SocketTalk):
    """One client. A lane that is busy keeps what is asked meanwhile."""

    def __init__(self, turnwire: Turnwire, scope: Request, caller: Caller, acceptance: dict[str, Any]) -> None:
        super().__init__(turnwire, scope, caller, acceptance, _SilentResponsesWire())
        self._lanes: dict[str | None, deque[CreateMessage]] = {}

    async def take(self, said: str | bytes) -> None:
        try:
            told = parse(CreateMessage, said)
        except HttpError as error:
            self.refuse(None, error)
            return
        if told.type != "response.create":
            self.refuse(told.stream_id, HttpError(422, "invalid_request", "type: only `response.create` is known here"))
        elif told.stream_id not in self._lanes:
            self._lanes[told.stream_id] = deque()
            await self._begin_or_go_on(told)
        elif len(waiting := self._lanes[told.stream_id]) < _MOST_WAITING:
            waiting.append(told)
        else:
            self.refuse(told.stream_id, HttpError(429, "too_many_turns", "the lane has enough to do; wait"))

    async def _begin_or_go_on(self, told: CreateMessage) -> None:
        await self.answer(told.stream_id, self._begin(told))
        if self.followings.turn_of(_name(told.stream_id)) is None:
            await self._go_on(told.stream_id)  # It was refused.

    async def _go_on(self, lane: str | None) -> None:
        """With what waits in a lane that has become free."""
        if waiting := self._lanes.get(lane):
            await self._begin_or_go_on(waiting.popleft())
        else:
            self._lanes.pop(lane, None)

    async def _begin(self, told: CreateMessage) -> None:
        body = parse_response_body(told.model_extra or {})
        with self.followings.room() as room:
            record, wire = await begin_response(self.turnwire, self.caller, body)
            self.followings.begin(
                _name(told.stream_id),
                record,
                await place_of_response(self.turnwire.store, record, wire, 0),
                wire,
                room.pop_all(),
                phrase=_in_lane(told.stream_id),
                ended=lambda whole: self._end(told.stream_id, whole),
            )

    def _end(self, lane: str | None, whole: bool) -> None:
        if not whole:
            self.refuse(lane, internal_error())
        self.soon(lane, self._go_on(lane))

    def refuse(self, told_id: Any, error: HttpError) -> None:
        told = in_dialect(PATH, error)
        lane = {} if told_id is None else {"stream_id": told_id}
        body = ascii_json({"type": "error", "status": told.status, **lane})
        self.socket.write(body[:-1] + b"," + told.body[1:])


def _name(lane: str | None) -> str:
    return "" if lane is None else f"lane {lane}"


def _in_lane(lane: str | None) -> Callable[[bytes], Iterator[str]]:
    """Makes messages of frames; each says its lane, if it has one."""
    end = "}" if lane is None else f',"stream_id":{ascii_json(lane).decode()}}}'

    def phrase(body: bytes) -> Iterator[str]:
        for line in body.split(b"\n"):
            if line.startswith(_DATA) and not line.endswith(_END):
                yield line[len(_DATA) : -1].decode("ascii") + end

    return phrase
