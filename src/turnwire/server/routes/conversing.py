"""What all sockets have in common: a client's messages are taken one by one, and each is answered or refused."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from turnwire.core.contracts import Wire
from turnwire.core.errors import TurnwireError
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, http_error, internal_error
from turnwire.server.routes.exchange import Request
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.following import Followings
from turnwire.server.streams.socket import Pace, Socket
from turnwire.server.turnwire import Turnwire

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
