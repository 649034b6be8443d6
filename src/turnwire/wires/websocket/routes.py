"""`/v1/ws`: many turns of many sessions on one socket.

Each message is checked for itself: its size, its form, the key's scopes, whose the turn is. A message with an `id` of
the client's is answered with the same one.
"""

from contextlib import ExitStack
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from turnwire.app import Turnwire
from turnwire.assembly import SOCKET_WIRES
from turnwire.core.codec import ascii_json
from turnwire.core.contracts import Reset
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, invalid_body
from turnwire.server.exchange import Request, is_ours
from turnwire.server.messages import ApprovalBody, ClientId, Cursor, MessageBody
from turnwire.server.streams.resume import ResumePoint
from turnwire.server.streams.socket import SocketTalk, lines
from turnwire.wires.websocket.encoder import WebSocket, message

# What clients of `/v1/ws` say: JSON objects with a `type`, and an `id` of their own that the answer repeats.


MessageId = Annotated[str, StringConstraints(max_length=128)] | int | None
Kind = Literal["start", "follow", "unfollow", "cancel", "approve", "ping"]
Model = TypeVar("Model", bound=BaseModel)


class ClientMessage(BaseModel):
    """What all of them have."""

    type: Kind
    id: MessageId = None


class StartMessage(MessageBody):
    """A message to an agent, as everywhere."""

    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    after: int = Field(0, ge=0, lt=10**15)


class TurnMessage(BaseModel):
    turn_id: ClientId


class FollowMessage(TurnMessage):
    """`after` is the last position that the client has, `epoch` the one it saw there if it knows."""

    after: int = Field(0, ge=0, lt=10**15)
    epoch: int | None = Field(None, ge=0, lt=10**15)


class ApproveMessage(TurnMessage, ApprovalBody):
    call_id: Annotated[str, StringConstraints(max_length=256)]


def parse(model: type[Model], said: str | bytes) -> Model:
    """Raises HttpError 400 or 422."""
    try:
        return model.model_validate_json(said)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the message is not JSON") from None
        raise invalid_body(error) from None


class TurnSocket(SocketTalk):
    """One client of `/v1/ws`. Messages are answered in order; those that take their time, when they are done."""

    def __init__(self, turnwire: Turnwire, scope: Request, caller: Caller, acceptance: dict[str, Any]) -> None:
        super().__init__(turnwire, scope, caller, acceptance, WebSocket())

    async def take(self, said: str | bytes) -> None:
        try:
            told = parse(ClientMessage, said)
        except HttpError as error:
            self.refuse(None, error)
            return
        match told.type:
            case "ping":
                self._say("pong", told.id)
            case "start":
                await self.answer(told.id, self._start(told.id, said))
            case "follow":
                await self.answer(told.id, self._follow(told.id, said))
            case "unfollow":
                await self.answer(told.id, self._unfollow(told.id, said))
            case "cancel":
                await self.answer_later(told.id, self._cancel(told.id, said))
            case "approve":
                await self.answer_later(told.id, self._approve(told.id, said))

    async def _start(self, told_id: MessageId, said: str | bytes) -> None:
        """Starts a turn, or joins the one that its id or key names, and follows it."""
        self.caller.needs("write")
        body = parse(StartMessage, said)
        with self.followings.room() as room:
            accepted = await self.turnwire.start(self.caller.principal, body, body.idempotency_key, channel="websocket")
            self._accept(told_id, accepted.record, created=accepted.created)
            await self._begin(accepted.record, Cursor(body.after), room)

    async def _follow(self, told_id: MessageId, said: str | bytes) -> None:
        """A turn from a position; the one that is followed already, from there instead."""
        self.caller.needs("read")
        told = parse(FollowMessage, said)
        record = await self.turnwire.store.find_turn(self.caller.principal, told.turn_id)
        self.followings.leave(record.id, by_client=False)
        with self.followings.room() as room:
            self._accept(told_id, record)
            await self._begin(record, Cursor(told.after, told.epoch), room)

    async def _begin(self, record: TurnRecord, cursor: Cursor, room: ExitStack) -> None:
        """From a position of the turn; from its start, if the position is not of this log."""
        is_of_it = await is_ours(self.turnwire.store, record, cursor)
        if is_of_it and record.phase == "ended" and cursor.position == record.last_position:
            return  # The client has it all, and was told so.
        self.followings.begin(
            record.id,
            record,
            ResumePoint(cursor.position if is_of_it else 0),
            SOCKET_WIRES["websocket"](record.id),
            room.pop_all(),
            phrase=lines,
            ended=lambda whole: None if whole else self._break(record.id),
            first=None if is_of_it else Reset(),
        )

    async def _unfollow(self, told_id: MessageId, said: str | bytes) -> None:
        record = await self.turnwire.store.find_turn(self.caller.principal, parse(TurnMessage, said).turn_id)
        self.followings.leave(record.id, by_client=True)
        self._accept(told_id, record)

    async def _cancel(self, told_id: MessageId, said: str | bytes) -> None:
        """Is answered when the turn has stopped, also if it had before."""
        self.caller.needs("write")
        record = await self.turnwire.store.find_turn(self.caller.principal, parse(TurnMessage, said).turn_id)
        await self.turnwire.runner.cancel(record.id)
        self._accept(told_id, await self.turnwire.store.find_turn(self.caller.principal, record.id))

    async def _approve(self, told_id: MessageId, said: str | bytes) -> None:
        self.caller.needs("approve")
        told = parse(ApproveMessage, said)
        record = await self.turnwire.store.find_turn(self.caller.principal, told.turn_id)
        await self.turnwire.runner.decide(
            record.id,
            told.call_id,
            approved=told.approved,
            reason=told.reason,
            by=self.caller.principal,
            args=told.args,
        )
        self._accept(told_id, await self.turnwire.store.find_turn(self.caller.principal, record.id))

    def _accept(self, told_id: MessageId, record: TurnRecord, **more: Any) -> None:
        self._say(
            "accepted",
            told_id,
            turn_id=record.id,
            session_id=record.session_id,
            phase=record.phase,
            outcome=record.outcome,
            last_position=record.last_position,
            **more,
        )

    def refuse(self, told_id: Any, error: HttpError) -> None:
        self.socket.say([f'{{"type":"error","id":{ascii_json(told_id).decode()},{error.body.decode()[1:]}'])

    def _break(self, turn_id: str) -> None:
        error = {"code": "internal_error", "message": "the turn could not be read on; follow it again"}
        self.socket.write(message("error", id=None, turn_id=turn_id, error=error))

    def _say(self, kind: str, told_id: MessageId, **fields: Any) -> None:
        self.socket.write(message(kind, id=told_id, **fields))
