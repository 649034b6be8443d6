"""One open WebSocket: its outgoing queue, the turns it follows, and the client's messages.

To the hub a socket is one connection among others, with heartbeats, a lifetime and a key that may be revoked. Outgoing
messages wait in a short queue. While it is full, a turn's reader holds only its position, and the client's own messages
are not read. The socket of a client that reads nothing for too long is closed, with a code that allows it to reconnect.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import ExitStack, aclosing
from typing import Any

from msgspec import Struct

from turnwire.core.contracts.wires import Control, Encoder, Wire
from turnwire.core.errors import TurnwireError
from turnwire.core.log.turns import TurnRecord
from turnwire.core.run.runner import TurnRunner
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, http_error, internal_error
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send, StreamConnection
from turnwire.server.streams.hub import Reader, StreamHub
from turnwire.server.streams.resume import ResumePoint

logger = logging.getLogger("turnwire.server")

_FULL_BYTES = 64 * 1024
_ROOM_BYTES = 16 * 1024
_MAX_CONCURRENT = 8
# Messages of a socket in a second; others wait. More than a person or an application sends, and little work.
MAX_MESSAGES_PER_SECOND = 50.0

ToMessages = Callable[[bytes], Iterable[str]]
"""Splits bytes of a wire into messages of the socket."""

REFUSED = 1008
TOO_LARGE = 1009
COME_BACK = 1012
TOO_SLOW = 1013


class Socket(StreamConnection):
    """The connection of a socket. `wire` is for control frames and heartbeats; each turn has a reader of its own."""

    __slots__ = ("_closing", "_has_room", "_is_full", "_more", "_queue", "_readers", "queued_bytes")

    def __init__(self, send: Send, wire: Wire, caller: Caller, route: str) -> None:
        super().__init__(send, wire, caller, route)
        self._queue: deque[str] = deque()
        self.queued_bytes = 0
        self._is_full = False
        self._readers: set[SocketReader] = set()
        self._closing: tuple[int, str] | None = None
        self._more = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def enqueue(self, messages: Iterable[str]) -> None:
        """Queue messages for the client; block the turns' readers if the queue is full."""
        if self.is_finished:
            return
        self.quiet_ticks = 0
        for text in messages:
            self._queue.append(text)
            self.queued_bytes += len(text)
        self._more.set()
        if self.queued_bytes > _FULL_BYTES and not self._is_full:
            self._is_full = True
            self._has_room.clear()
            for reader in self._readers:
                reader.is_blocked = True

    def write(self, body: bytes, *, last: bool = False) -> None:
        self.enqueue(body.decode("ascii").splitlines())
        if last:
            self.close(COME_BACK)

    def finish(self, control: Control) -> None:
        frame = self.wire.control(control)
        if self.is_blocked:
            self._queue.clear()
        if frame is not None:
            self.write(frame)
        self.close(COME_BACK, "come back")

    def close(self, code: int, reason: str = "") -> None:
        """Close the socket once the queue is sent."""
        if not self.is_finished:
            self.is_finished = True
            self._closing = code, reason
            self._more.set()
            self._has_room.set()

    def abort(self) -> None:
        """Drop the queue and close the socket; the second time, break the connection."""
        if self.is_finished:
            super().abort()
            return
        self._queue.clear()
        self.blocked_ticks = 0
        # The hub aborts a client that reads nothing, and one whose key is no longer valid.
        if self.is_blocked:
            self.close(TOO_SLOW, "too slow")
        else:
            self.close(REFUSED, "the key is no longer valid")

    def add(self, reader: "SocketReader") -> None:
        self._readers.add(reader)
        reader.is_blocked = self._is_full

    def remove(self, reader: "SocketReader") -> None:
        self._readers.discard(reader)

    @property
    def was_closed(self) -> bool:
        """Return True if the server closed the socket."""
        return self._closing is not None

    async def has_room(self) -> None:
        await self._has_room.wait()

    async def messages(self, receive: Receive, max_bytes: int) -> AsyncGenerator[str | bytes]:
        """Yield the client's messages until one side closes; read none while the queue is full."""
        self._task = asyncio.create_task(self._send_queued())
        try:
            while (message := await self._next(receive)) is not None:
                data: str | bytes = message.get("text") or message.get("bytes") or ""
                if _byte_count(data) > max_bytes:
                    self.close(TOO_LARGE, f"a message may have {max_bytes} bytes")
                elif not self.is_finished:
                    yield data
                    await self.has_room()
        finally:
            self.is_finished = True
            self._has_room.set()
            self._task.cancel()

    async def _next(self, receive: Receive) -> dict[str, Any] | None:
        """Return the client's next message; None if the client has left or the socket is broken."""
        try:
            async with asyncio.timeout(None) as self._scope:
                message = await receive()
        except TimeoutError:
            return None
        finally:
            self._scope = None
        return None if message["type"] == "websocket.disconnect" else message

    async def _send_queued(self) -> None:
        try:
            while self._queue or self._closing is None:
                while self._queue:
                    text = self._queue.popleft()
                    await self._sent({"type": "websocket.send", "text": text})
                    self.queued_bytes = self.queued_bytes - len(text) if self._queue else 0
                    if self._is_full and self.queued_bytes <= _ROOM_BYTES:
                        self._make_room()
                self._more.clear()
                if self._closing is None:
                    await self._more.wait()
            code, reason = self._closing
            await self._sent({"type": "websocket.close", "code": code, "reason": reason})
        except Exception:
            self.is_finished = True  # The client has left, which `messages` notices too.
        finally:
            self.is_blocked = False

    async def _sent(self, message: dict[str, Any]) -> None:
        self.is_blocked = True
        self.blocked_ticks = 0
        await self._send(message)
        self.is_blocked = False

    def _make_room(self) -> None:
        self._is_full = False
        self._has_room.set()
        for reader in tuple(self._readers):
            reader.is_blocked = self._is_full  # Another reader may have filled the queue again.
            if reader.on_writable is not None:
                reader.on_writable()


def _byte_count(data: str | bytes) -> int:
    return len(data) if isinstance(data, bytes) or data.isascii() else len(data.encode())


class RateLimiter:
    """Lets `per_second` messages pass each second; a burst may have as many as one second."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._due = 0.0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - 1) + self._interval
        if self._due > now:
            await asyncio.sleep(self._due - now)


class SilentWire:
    """The wire of a socket whose protocol has no heartbeat and no control frames: WebSocket pings keep it alive."""

    name = key = "silent"
    media_type = ""
    keeps_state = numbers_frames = False
    heartbeat = opening = b""

    def encoder(self) -> Encoder:
        raise AssertionError("a turn on a socket is encoded by its own wire")

    def control(self, control: Control) -> None:
        return None


# Turns on a socket


class SocketReader(StreamConnection):
    """The connection of one turn on a socket.

    `ended` is called when nothing more will come, with True if the turn has ended.
    """

    __slots__ = ("_ended", "_socket", "_to_messages")

    def __init__(self, socket: Socket, wire: Wire, to_messages: ToMessages, ended: Callable[[bool], None]) -> None:
        super().__init__(_cannot_send, wire, socket.caller, socket.route)
        self._socket = socket
        self._to_messages = to_messages
        self._ended = ended
        socket.add(self)

    def write(self, body: bytes, *, last: bool = False) -> None:
        if self.is_finished:
            return
        self._socket.enqueue(self._to_messages(body))
        if last:
            self._end(whole=True)

    async def written(self, body: bytes, *, last: bool = False) -> None:
        await self._socket.has_room()
        self.write(body, last=last)
        await self._socket.has_room()

    def abort(self) -> None:
        if not self.is_finished:
            self._end(whole=False)

    def close(self) -> None:
        self.is_finished = True
        self._socket.remove(self)

    def _end(self, *, whole: bool) -> None:
        self.is_finished = True
        # Later, because what writes is still running.
        asyncio.get_running_loop().call_soon(self._ended, whole)


async def _cannot_send(message: dict[str, Any]) -> None:
    raise AssertionError("a turn on a socket is written by the socket")


def lines(body: bytes) -> Iterable[str]:
    """Return the messages of a wire that ends each with a line feed."""
    return body.decode("ascii").splitlines()


class _FollowedTurn(Struct, eq=False):
    turn_id: str
    connection: SocketReader
    reader: Reader | None
    slot: ExitStack


class SocketTurns:
    """The turns that a socket follows, by names of the caller's choice. Each counts as a stream of its principal."""

    def __init__(self, hub: StreamHub, runner: TurnRunner, socket: Socket) -> None:
        self._hub = hub
        self._runner = runner
        self._socket = socket
        self._followed: dict[str, _FollowedTurn] = {}

    def slot(self) -> ExitStack:
        """Reserve a slot for one more turn, to be passed to `follow`. Raises TooManyStreamsError, ShuttingDownError."""
        with ExitStack() as stack:
            stack.enter_context(self._hub.room(self._socket.caller.principal))
            return stack.pop_all()

    def turn_id(self, name: str) -> str | None:
        followed = self._followed.get(name)
        return followed.turn_id if followed else None

    def follow(
        self,
        name: str,
        record: TurnRecord,
        point: ResumePoint,
        wire: Wire,
        slot: ExitStack,
        *,
        to_messages: ToMessages,
        ended: Callable[[bool], None],
    ) -> None:
        """Write a turn to the socket, in place of the one that was followed under the name.

        `ended` is called with True when the turn has ended, with False when it can no longer be read.
        """
        self.leave(name, by_client=False)

        def end(whole: bool) -> None:
            if self._followed.get(name) is followed:
                self.leave(name, by_client=False)
                ended(whole)

        connection = SocketReader(self._socket, wire, to_messages, end)
        followed = self._followed[name] = _FollowedTurn(record.id, connection, None, slot)
        self._runner.presence.join(record)
        if self._socket.is_finished:  # The client has left meanwhile.
            self.leave(name, by_client=not self._socket.was_closed)
            return
        followed.reader = self._hub.attach(record, point, connection)

    def leave(self, name: str, *, by_client: bool) -> None:
        followed = self._followed.pop(name, None)
        if followed is None:
            return
        followed.connection.close()
        if followed.reader is not None:
            followed.reader.close()
        followed.slot.close()
        self._runner.presence.depart(followed.turn_id, by_client=by_client)

    def leave_all(self, *, by_client: bool) -> None:
        for name in tuple(self._followed):
            self.leave(name, by_client=by_client)


# The client's messages


class SocketHandler(ABC):
    """One client on one socket: its messages are handled one by one, and each is answered or refused.

    `acceptance` is the ASGI message that accepts the socket; `wire` is the socket's own.
    """

    def __init__(self, request: Request, services: Services, acceptance: dict[str, Any], wire: Wire) -> None:
        self.services = services
        self.caller = request.caller
        self._wire, self._route = wire, request.route
        self._acceptance = acceptance
        self._concurrent = asyncio.Semaphore(_MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def handle(self, data: str | bytes) -> None:
        """Handle a message of the client."""

    @abstractmethod
    def send_error(self, message_id: Any, error: HttpError) -> None:
        """Tell the client that a message was refused; `message_id` is the client's name for it."""

    async def run(self, receive: Receive, send: Send) -> None:
        settings, streams = self.services.settings, self.services.streams
        self.socket = socket = Socket(send, self._wire, self.caller, self._route)
        self.turns = SocketTurns(streams, self.services.runner, socket)
        limiter = RateLimiter(MAX_MESSAGES_PER_SECOND)
        streams.register(socket)
        try:
            await send(self._acceptance)
            async with aclosing(socket.messages(receive, settings.max_body_bytes)) as messages:
                async for data in messages:
                    await limiter.wait()
                    await self.handle(data)
        finally:
            self.turns.leave_all(by_client=not socket.was_closed)
            streams.disconnect(socket)

    async def perform(self, message_id: Any, action: Coroutine[Any, Any, None]) -> None:
        """Run the action that a message asks for; send the error if it fails."""
        try:
            await action
        except TurnwireError as error:
            self.send_error(message_id, http_error(error))
        except HttpError as error:
            self.send_error(message_id, error)
        except Exception:
            logger.exception("a message on a socket could not be handled")
            self.send_error(message_id, internal_error())

    async def perform_later(self, message_id: Any, action: Coroutine[Any, Any, None]) -> None:
        """Run an action while the next messages are handled; it is finished even if the client leaves."""
        await self._concurrent.acquire()
        self.spawn(message_id, action).add_done_callback(lambda _: self._concurrent.release())

    def spawn(self, message_id: Any, action: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self.perform(message_id, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
