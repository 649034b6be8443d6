"""`/v1/ws`: many turns of many sessions on one socket.

Each message is checked on its own: its size, its form, the key's scopes, the owner of the turn. The answer to a message
with an `id` repeats the id.
"""

from contextlib import ExitStack
from typing import Any

from turnwire.core.log.codec import ascii_json
from turnwire.core.log.turns import TurnRecord
from turnwire.server.errors import HttpError
from turnwire.server.messages import Cursor, parse_json
from turnwire.server.request import Request
from turnwire.server.router import SocketRoute
from turnwire.server.services import Services
from turnwire.server.streams.resume import find_cursor
from turnwire.server.streams.socket import SocketHandler, lines
from turnwire.server.turns import start_turn
from turnwire.wires.conversation import record_answers
from turnwire.wires.websocket.encoder import WebSocket, message
from turnwire.wires.websocket.messages import (
    ANSWERS,
    AnswerMessage,
    ClientMessage,
    FollowMessage,
    MessageId,
    StartMessage,
    TurnMessage,
)


class TurnSocket(SocketHandler):
    """One client of `/v1/ws`. Messages are answered in order, slow ones when they are done."""

    def __init__(self, request: Request, services: Services, acceptance: dict[str, Any]) -> None:
        super().__init__(request, services, acceptance, WebSocket())

    async def handle(self, data: str | bytes) -> None:
        try:
            received = parse_json(ClientMessage, data, "message")
        except HttpError as error:
            self.send_error(None, error)
            return
        message_id = received.id
        match received.type:
            case "ping":
                self._send("pong", message_id)
            case "start":
                await self.perform(message_id, self._start(message_id, data))
            case "follow":
                await self.perform(message_id, self._follow(message_id, data))
            case "unfollow":
                await self.perform(message_id, self._unfollow(message_id, data))
            case "cancel":
                await self.perform_later(message_id, self._cancel(message_id, data))
            case "approve" | "reply" | "tool_result" as kind:
                await self.perform_later(message_id, self._answer(message_id, ANSWERS[kind], data))

    async def _start(self, message_id: MessageId, data: str | bytes) -> None:
        """Start a turn, or join the one that its id or key names, and follow it."""
        self.caller.needs("write")
        body = parse_json(StartMessage, data, "message")
        with self.turns.slot() as slot:
            accepted = await start_turn(
                self.services, self.caller.principal, body, body.idempotency_key, channel="websocket"
            )
            self._accept(message_id, accepted.record, created=accepted.created)
            await self._follow_from(accepted.record, Cursor(body.after), slot)

    async def _follow(self, message_id: MessageId, data: str | bytes) -> None:
        """Follow a turn from a position; if it is followed already, from there instead."""
        self.caller.needs("read")
        body = parse_json(FollowMessage, data, "message")
        record = await self._find(body.turn_id)
        self.turns.leave(record.id, by_client=False)
        with self.turns.slot() as slot:
            self._accept(message_id, record)
            await self._follow_from(record, Cursor(body.after, body.epoch), slot)

    async def _follow_from(self, record: TurnRecord, cursor: Cursor, slot: ExitStack) -> None:
        """Follow a turn from a position; from its start, if the position is not one of its log."""
        point = await find_cursor(self.services.store, record, cursor)
        if point.is_end:
            return  # The client has the whole turn, and `accepted` says so.
        self.turns.follow(
            record.id,
            record,
            point,
            WebSocket(record.id),
            slot.pop_all(),
            to_messages=lines,
            ended=lambda whole: None if whole else self._send_broken(record.id),
        )

    async def _unfollow(self, message_id: MessageId, data: str | bytes) -> None:
        record = await self._find(parse_json(TurnMessage, data, "message").turn_id)
        self.turns.leave(record.id, by_client=True)
        self._accept(message_id, record)

    async def _cancel(self, message_id: MessageId, data: str | bytes) -> None:
        """Stop a turn, and answer when it has stopped, also if it had before."""
        self.caller.needs("write")
        record = await self._find(parse_json(TurnMessage, data, "message").turn_id)
        await self.services.runner.cancel(record.id)
        self._accept(message_id, await self._find(record.id))

    async def _answer(self, message_id: MessageId, model: type[AnswerMessage], data: str | bytes) -> None:
        """Take what a turn waits for: a decision, a reply, or the result of a tool of the client."""
        body = parse_json(model, data, "message")
        answers = [body.to_answer(self.caller.principal)]
        record = await record_answers(self.services, self.caller, await self._find(body.turn_id), answers)
        self._accept(message_id, record)

    async def _find(self, turn_id: str) -> TurnRecord:
        return await self.services.store.find_turn(self.caller.principal, turn_id)

    def _accept(self, message_id: MessageId, record: TurnRecord, **more: Any) -> None:
        self._send(
            "accepted",
            message_id,
            turn_id=record.id,
            session_id=record.session_id,
            phase=record.phase,
            outcome=record.outcome,
            last_position=record.last_position,
            **more,
        )

    def send_error(self, message_id: Any, error: HttpError) -> None:
        self.socket.enqueue([f'{{"type":"error","id":{ascii_json(message_id).decode()},{error.body.decode()[1:]}'])

    def _send_broken(self, turn_id: str) -> None:
        error = {"code": "internal_error", "message": "the turn can no longer be read here; follow it again"}
        self.socket.write(message("error", id=None, turn_id=turn_id, error=error))

    def _send(self, kind: str, message_id: MessageId, **fields: Any) -> None:
        self.socket.write(message(kind, id=message_id, **fields))


def routes() -> list[SocketRoute]:
    return [
        SocketRoute("/v1/ws", TurnSocket, "Many turns on one WebSocket: start, follow, cancel, answer", "turns"),
    ]
