"""`/api/chat/ws`: the AI SDK's `WebSocketChatTransport`.

Its client names each request, counts the chunks of each answer from 0, and gives the connection up at the first
message that it does not know, so nothing else is ever said here: an idle socket is kept alive by the protocol's own
pings, and one that must end is closed. What it resumes is replayed from the start.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnwire.app import Turnwire
from turnwire.core.codec import ascii_json
from turnwire.core.contracts import Control
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import Request
from turnwire.server.messages import check_id, query_of
from turnwire.server.streams.resume import ResumePoint, void_of
from turnwire.server.streams.socket import REFUSED, SocketTalk
from turnwire.wires.ai_sdk.conversation import gone_on, run_of, started, still_waiting
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.ai_sdk.frames import chunks_of
from turnwire.wires.ai_sdk.messages import ChatBody, parse_chat
from turnwire.wires.websocket.routes import parse

_DATA = len(b"data: ")
_FIRST_VERSION = 7  # The first that has this transport.
_MOST_REASON = 120  # A close frame has room for 123 bytes.
RequestId = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class ChatFrame(BaseModel):
    """What the client says. The `headers` are those that it would send with a request of its own."""

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
        """The same as the body of a `POST /api/chat`. Raises HttpError 422."""
        told = {**self.body, "id": self.id, "messages": self.messages, "trigger": self.trigger}
        return parse_chat(ascii_json({**told, "messageId": self.message_id}))


class _SilentChatWire(AiSdk):
    """For the socket itself, which has nothing to say of its own."""

    heartbeat = b""

    def control(self, control: Control) -> None:
        return None


class ChatSocket(SocketTalk):
    def __init__(self, turnwire: Turnwire, scope: Request, caller: Caller, acceptance: dict[str, Any]) -> None:
        """Raises HttpError 422."""
        try:
            self._chat_wire = AiSdk.of_query(query_of(scope), _FIRST_VERSION)
        except ValueError as error:
            raise HttpError(422, "invalid_request", str(error)) from None
        super().__init__(turnwire, scope, caller, acceptance, _SilentChatWire())

    async def take(self, said: str | bytes) -> None:
        try:
            frame = parse(ChatFrame, said)
        except HttpError as error:
            # There is no word for it: an answer needs the name of a request.
            self.socket.close(REFUSED, str(error)[:_MOST_REASON])
            return
        match frame.type:
            case "send":
                await self.answer(frame.request_id, self._send(frame))
            case "resume":
                await self.answer(frame.request_id, self._resume(frame))
            case "abort":
                await self.answer_later(frame.request_id, self._abort(frame))

    async def _send(self, frame: ChatFrame) -> None:
        """Starts a turn, joins the one that answers this message already, or goes on with one that has waited."""
        self.caller.needs("write")
        body = frame.chat
        with self.followings.room() as room:
            if (decided := body.decision_message) is not None:
                record, place = await gone_on(self.turnwire, self.caller, body, decided, self._chat_wire)
                if place is None:
                    self.socket.say(_numbered(frame.request_id)(b"".join(still_waiting(record.id))))
                    self._say("end", frame.request_id)
                    return
            else:
                record = await started(self.turnwire, self.caller, body, frame.headers.get("idempotency-key"))
                place = ResumePoint(void=await void_of(self.turnwire.store, record.id))
            self._begin(frame.request_id, record, place, room)

    async def _resume(self, frame: ChatFrame) -> None:
        """What is being answered in a chat, from the start."""
        self.caller.needs("read")
        run = await run_of(self.turnwire, self.caller, check_id(frame.id or ""))
        if run is None:
            self._say("no-active", frame.request_id)
            return
        with self.followings.room() as room:
            record = await self.turnwire.store.find_turn(self.caller.principal, run.turn_id)
            place = ResumePoint(void=await void_of(self.turnwire.store, record.id))
            self._say("start", frame.request_id)
            self._begin(frame.request_id, record, place, room)

    async def _abort(self, frame: ChatFrame) -> None:
        """Unlike a connection that is lost, this is the user's word: the turn is stopped."""
        turn_id = self.followings.turn_of(frame.request_id)
        if turn_id is not None:
            self.followings.leave(frame.request_id, by_client=True)
            self.caller.needs("write")
            await self.turnwire.runner.cancel(turn_id)

    def _begin(self, request_id: str, record: TurnRecord, place: ResumePoint, room: ExitStack) -> None:
        def ended(whole: bool) -> None:
            if whole:
                self._say("end", request_id)
            else:
                self._say("error", request_id, errorText="the connection to the answer was lost; resume it")

        self.followings.begin(
            request_id, record, place, self._chat_wire, room.pop_all(), phrase=_numbered(request_id), ended=ended
        )

    def refuse(self, told_id: Any, error: HttpError) -> None:
        self._say("error", told_id, errorText=str(error))

    def _say(self, kind: str, request_id: str, **fields: Any) -> None:
        self.socket.write(ascii_json({"type": kind, "requestId": request_id, **fields}))


def _numbered(request_id: str) -> Callable[[bytes], Iterator[str]]:
    """Makes messages of chunks, which are counted over all of a request."""
    name, sequence = ascii_json(request_id).decode(), count()

    def phrase(body: bytes) -> Iterator[str]:
        for chunk in chunks_of(body):
            told = chunk[_DATA:-2].decode("ascii")
            yield f'{{"type":"chunk","requestId":{name},"sequence":{next(sequence)},"chunk":{told}}}'

    return phrase
