"""`/api/chat/ws`: the AI SDK's `WebSocketChatTransport`.

Its client names each request, counts the chunks of each answer from 0, and closes the connection at the first message
of an unknown type. So the server sends nothing else: WebSocket pings keep an idle socket alive, and a socket that must
end is closed. A resumed answer is replayed from its start.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnwire.core.codec import ascii_json
from turnwire.core.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.messages import check_id
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.resume import ResumePoint, void_of
from turnwire.server.streams.socket import REFUSED, SilentWire, SocketHandler
from turnwire.wires.ai_sdk.conversation import continue_chat, find_run, start_chat, still_waiting
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.ai_sdk.frames import chunks_of
from turnwire.wires.ai_sdk.messages import ChatBody, parse_chat
from turnwire.wires.websocket.routes import parse

_DATA = len(b"data: ")
_FIRST_VERSION = 7  # The first that has this transport.
_MAX_REASON_LENGTH = 120  # A close frame has room for 123 bytes.
RequestId = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class ChatFrame(BaseModel):
    """A message of the client. The `headers` are those that it would send with an HTTP request."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["send", "resume", "abort"]
    request_id: RequestId = Field(alias="requestId")
    id: str | None = Field(None, max_length=256)
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    trigger: str | None = None
    message_id: str | None = Field(None, alias="messageId")
    messages: list[Any] = []

    @property
    def chat(self) -> ChatBody:
        """Return the same as the body of a `POST /api/chat`. Raises HttpError 422."""
        fields = {**self.body, "id": self.id, "messages": self.messages, "trigger": self.trigger}
        return parse_chat(ascii_json({**fields, "messageId": self.message_id}))


class ChatSocket(SocketHandler):
    """One client of `/api/chat/ws`."""

    def __init__(self, request: Request, services: Services, acceptance: dict[str, Any]) -> None:
        """Raises HttpError 422."""
        try:
            self._chat_wire = AiSdk.of_query(request.query, _FIRST_VERSION)
        except ValueError as error:
            raise HttpError(422, "invalid_request", str(error)) from None
        super().__init__(request, services, acceptance, SilentWire())

    async def handle(self, data: str | bytes) -> None:
        try:
            frame = parse(ChatFrame, data)
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
            if (decided := body.decision_message) is not None:
                record, point = await continue_chat(self.services, self.caller, body, decided, self._chat_wire)
                if point is None:
                    self.socket.enqueue(_numbered(frame.request_id)(b"".join(still_waiting(record.id))))
                    self._send("end", frame.request_id)
                    return
            else:
                key = frame.headers.get("idempotency-key")
                record, point = await start_chat(self.services, self.caller, body, key)
            self._follow(frame.request_id, record, point, slot)

    async def _resume(self, frame: ChatFrame) -> None:
        """Stream the turn that runs in a chat, from its start."""
        self.caller.needs("read")
        run = await find_run(self.services, self.caller, check_id(frame.id or ""))
        if run is None:
            self._send("no-active", frame.request_id)
            return
        with self.turns.slot() as slot:
            record = await self.services.store.find_turn(self.caller.principal, run.turn_id)
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
            data = chunk[_DATA:-2].decode("ascii")
            yield f'{{"type":"chunk","requestId":{name},"sequence":{next(sequence)},"chunk":{data}}}'

    return to_messages
