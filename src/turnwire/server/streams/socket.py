"""One open WebSocket: what is said on it, in order, and how it ends.

To the hub it is one connection among others: it has heartbeats, a lifetime, a key that may be revoked.
What is to be said waits in a short queue. When that is full nothing more is put in it: a turn's reader then
holds only its position, and the client's own messages are not taken. A client that takes nothing for too
long is closed with a code that it can come back from.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import ExitStack, aclosing
from typing import Any

from msgspec import Struct

from turnwire.app import Turnwire
from turnwire.core.contracts import Control, Wire
from turnwire.core.errors import TurnwireError
from turnwire.core.runner import TurnRunner
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, http_error, internal_error
from turnwire.server.exchange import Request
from turnwire.server.streams.connection import Connection, Receive, Send
from turnwire.server.streams.hub import StreamHub
from turnwire.server.streams.pump import TurnReader
from turnwire.server.streams.replay import TurnReplay
from turnwire.server.streams.resume import ResumePoint

_FULL_BYTES = 64 * 1024
_ROOM_BYTES = 16 * 1024

REFUSED = 1008
TOO_LARGE = 1009
COME_BACK = 1012
TOO_SLOW = 1013


class Socket(Connection):
    """`wire` is for controls and heartbeats; turns are written by readers of their own."""

    __slots__ = ("_closing", "_has_room", "_is_full", "_more", "_queue", "_readers", "_size")

    def __init__(self, send: Send, wire: Wire, principal: str, key_id: str | None) -> None:
        super().__init__(send, wire, principal, key_id)
        self._queue: deque[str] = deque()
        self._size = 0
        self._is_full = False
        self._readers: set[SocketReader] = set()
        self._closing: tuple[int, str] | None = None
        self._more = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def say(self, messages: Iterable[str]) -> None:
        if self.is_finished:
            return
        self.quiet_ticks = 0
        for text in messages:
            self._queue.append(text)
            self._size += len(text)
        self._more.set()
        if self._size > _FULL_BYTES and not self._is_full:
            self._is_full = True
            self._has_room.clear()
            for reader in self._readers:
                reader.is_blocked = True

    def write(self, body: bytes, *, last: bool = False) -> None:
        self.say(body.decode("ascii").splitlines())
        if last:
            self.close(COME_BACK)

    def finish(self, control: Control) -> None:
        farewell = self.wire.control(control)
        if self.is_blocked:
            self._queue.clear()
        if farewell is not None:
            self.write(farewell)
        self.close(COME_BACK, "come back")

    def close(self, code: int, reason: str = "") -> None:
        """Ends the socket when what was said before is sent."""
        if not self.is_finished:
            self.is_finished = True
            self._closing = code, reason
            self._more.set()
            self._has_room.set()

    def abort(self) -> None:
        """Ends the socket, what was said and not yet sent left out; the second time, without a word."""
        if self.is_finished:
            super().abort()
            return
        self._queue.clear()
        self.blocked_ticks = 0
        # The hub does this to a client that takes nothing, and to one whose key is no longer valid.
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
        """Whether it was this side that ended it."""
        return self._closing is not None

    async def has_room(self) -> None:
        await self._has_room.wait()

    async def messages(self, receive: Receive, most_bytes: int) -> AsyncGenerator[str | bytes]:
        """What the client says, until one side leaves. Nothing is taken while the client takes nothing."""
        self._task = asyncio.create_task(self._send_queued())
        try:
            while (message := await self._next(receive)) is not None:
                said: str | bytes = message.get("text") or message.get("bytes") or ""
                if len(said) > most_bytes:
                    self.close(TOO_LARGE, f"a message may have {most_bytes} bytes")
                elif not self.is_finished:
                    yield said
                    await self.has_room()
        finally:
            self.is_finished = True
            self._has_room.set()
            self._task.cancel()

    async def _next(self, receive: Receive) -> dict[str, Any] | None:
        """The client's next message; None if it has left, or if we have broken the socket."""
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
                    self._size = self._size - len(text) if self._queue else 0
                    if self._is_full and self._size <= _ROOM_BYTES:
                        self._make_room()
                self._more.clear()
                if self._closing is None:
                    await self._more.wait()
            code, reason = self._closing
            await self._sent({"type": "websocket.close", "code": code, "reason": reason})
        except Exception:
            self.is_finished = True  # The client has left; whoever listens to it is told so.
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
            reader.is_blocked = self._is_full  # One of the others may have filled it again.
            if reader.on_writable is not None:
                reader.on_writable()


class Pace:
    """How fast messages are taken: so many a second, with one second's worth at once. The others wait."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._due = 0.0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - 1) + self._interval
        if self._due > now:
            await asyncio.sleep(self._due - now)


class SocketReader(Connection):
    """One turn on a socket: for a pump or a replay a connection like any other.

    `phrase` makes the socket's messages of the wire's bytes; `ended` is called when nothing more will come, with
    whether that is the turn's end.
    """

    __slots__ = ("_ended", "_phrase", "_socket")

    def __init__(
        self, socket: Socket, wire: Wire, phrase: Callable[[bytes], Iterable[str]], ended: Callable[[bool], None]
    ) -> None:
        super().__init__(_cannot_send, wire, socket.principal, socket.key_id)
        self._socket = socket
        self._phrase = phrase
        self._ended = ended
        socket.add(self)

    def write(self, body: bytes, *, last: bool = False) -> None:
        if self.is_finished:
            return
        self._socket.say(self._phrase(body))
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
        # Whoever writes is still at it.
        asyncio.get_running_loop().call_soon(self._ended, whole)


async def _cannot_send(message: dict[str, Any]) -> None:
    raise AssertionError("a turn on a socket is written by the socket")


def lines(body: bytes) -> Iterable[str]:
    """The messages of a wire that ends each with a line feed."""
    return body.decode("ascii").splitlines()


# The turns that one socket follows, each from its own place and until its own end.


class _Followed(Struct, eq=False):
    turn_id: str
    connection: SocketReader
    reader: TurnReader | TurnReplay | None
    room: ExitStack


class Followings:
    """By names of the caller's choice. Each counts as a stream of its principal's."""

    def __init__(self, hub: StreamHub, runner: TurnRunner, socket: Socket) -> None:
        self._hub = hub
        self._runner = runner
        self._socket = socket
        self._followed: dict[str, _Followed] = {}

    def room(self) -> ExitStack:
        """A place for one more, to be handed to `begin`. Raises TooManyStreamsError, ShuttingDownError."""
        with ExitStack() as stack:
            stack.enter_context(self._hub.room(self._socket.principal))
            return stack.pop_all()

    def turn_of(self, name: str) -> str | None:
        followed = self._followed.get(name)
        return followed.turn_id if followed else None

    def begin(
        self,
        name: str,
        record: TurnRecord,
        place: ResumePoint,
        wire: Wire,
        room: ExitStack,
        *,
        phrase: Callable[[bytes], Iterable[str]],
        ended: Callable[[bool], None],
        first: Control | None = None,
    ) -> None:
        """Has a turn written to the socket. Whoever was followed under the name is left.

        `phrase` makes messages of the wire's bytes; `ended` is told whether it was the turn's end that ended it.
        """
        self.leave(name, by_client=False)

        def end(whole: bool) -> None:
            if self._followed.get(name) is followed:
                self.leave(name, by_client=False)
                ended(whole)

        connection = SocketReader(self._socket, wire, phrase, end)
        followed = self._followed[name] = _Followed(record.id, connection, None, room)
        self._runner.reader_joined(record)
        if first is not None:
            connection.tell(first)
        connection.write(place.rest, last=place.is_end)
        if not place.is_end:
            followed.reader = self._hub.attach(record, place.position, connection, place.void)

    def leave(self, name: str, *, by_client: bool) -> None:
        followed = self._followed.pop(name, None)
        if followed is None:
            return
        followed.connection.close()
        if followed.reader is not None:
            followed.reader.close()
        followed.room.close()
        self._runner.reader_left(followed.turn_id, by_client=by_client)

    def leave_all(self, *, by_client: bool) -> None:
        for name in tuple(self._followed):
            self.leave(name, by_client=by_client)


# What all sockets have in common: a client's messages are taken one by one, and each is answered or refused.


logger = logging.getLogger("turnwire.server")

_MOST_AT_ONCE = 8


class SocketTalk(ABC):
    """One client on one socket. `acceptance` is the ASGI message that accepts it; `wire` says what is no turn's."""

    def __init__(
        self, turnwire: Turnwire, scope: Request, caller: Caller, acceptance: dict[str, Any], wire: Wire
    ) -> None:
        self.turnwire = turnwire
        self.caller = caller
        self._wire = wire
        self._acceptance = acceptance
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def take(self, said: str | bytes) -> None:
        """A message of the client's."""

    @abstractmethod
    def refuse(self, told_id: Any, error: HttpError) -> None:
        """Says that a message was not done; `told_id` is the client's name for it."""

    async def run(self, receive: Receive, send: Send) -> None:
        settings, streams = self.turnwire.settings, self.turnwire.streams
        self.socket = socket = Socket(send, self._wire, self.caller.principal, self.caller.key_id)
        self.followings = Followings(streams, self.turnwire.runner, socket)
        pace = Pace(settings.max_socket_rate)
        streams.welcome(socket)
        try:
            await send(self._acceptance)
            async with aclosing(socket.messages(receive, settings.max_body_bytes)) as messages:
                async for said in messages:
                    await pace.wait()
                    await self.take(said)
        finally:
            self.followings.leave_all(by_client=not socket.was_closed)
            streams.disconnect(socket)

    async def answer(self, told_id: Any, answering: Coroutine[Any, Any, None]) -> None:
        try:
            await answering
        except TurnwireError as error:
            self.refuse(told_id, http_error(error))
        except HttpError as error:
            self.refuse(told_id, error)
        except Exception:
            logger.exception("a message on a socket could not be answered")
            self.refuse(told_id, internal_error())

    async def answer_later(self, told_id: Any, answering: Coroutine[Any, Any, None]) -> None:
        """Answers while the next messages are taken. What was begun is done, also if the client leaves."""
        await self._at_once.acquire()
        self.soon(told_id, answering).add_done_callback(lambda _: self._at_once.release())

    def soon(self, told_id: Any, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self.answer(told_id, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
