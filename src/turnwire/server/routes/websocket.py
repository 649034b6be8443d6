"""`/v1/ws`: many turns of many sessions on one socket.

Each message is checked for itself: its size, its form, the key's scopes, whose the turn is. A message with an `id` of
the client's is answered with the same one.
"""

from contextlib import ExitStack
from typing import Any

from turnwire.assembly import SOCKET_WIRES
from turnwire.core.contracts import Reset
from turnwire.core.encoding import ascii_json
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.requests import Cursor
from turnwire.server.routes.conversing import SocketTalk
from turnwire.server.routes.exchange import Request, is_ours
from turnwire.server.routes.websocket_messages import (
    ApproveMessage,
    ClientMessage,
    FollowMessage,
    MessageId,
    StartMessage,
    TurnMessage,
    parse,
)
from turnwire.server.streams.lookahead import Place
from turnwire.server.streams.socket import lines
from turnwire.server.turnwire import Turnwire
from turnwire.wires.websocket import WebSocket, message


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
            Place(cursor.position if is_of_it else 0),
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
