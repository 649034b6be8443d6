"""A client of `/v1/ws` that knows only what the guide says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.serving import PATIENCE, Client

SocketMessage = dict[str, Any]


class Talk:
    """An open socket. What was read and not asked for is kept."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.pending: list[SocketMessage] = []
        self._count = 0

    async def say(self, kind: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def hear(self) -> SocketMessage:
        """Return the next message."""
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.connection.recv())

    async def ask(self, kind: str, **fields: Any) -> SocketMessage:
        """Says something and waits for its answer; what comes before that is kept."""
        self._count += 1
        await self.say(kind, id=f"m{self._count}", **fields)
        while (message := await self.hear()).get("id") != f"m{self._count}":
            self.pending.append(message)
        return message

    async def refused(self, kind: str, **fields: Any) -> str:
        """Return the error code of a refused message."""
        message = await self.ask(kind, **fields)
        assert message["type"] == "error", message
        assert message["error"]["message"]
        return message["error"]["code"]

    async def events(self, turn_id: str, until: str = "done") -> list[SocketMessage]:
        """Return the unread events of a turn, up to the first one of a type."""
        events: list[SocketMessage] = []
        others: list[SocketMessage] = []
        while not events or events[-1]["event"]["type"] != until:
            message = self.pending.pop(0) if self.pending else await self.hear()
            is_wanted = message["type"] == "event" and message["turn_id"] == turn_id
            (events if is_wanted else others).append(message)
        self.pending[:0] = others
        return events

    async def closed(self) -> tuple[int | None, list[SocketMessage]]:
        """Waits for the end; its code, and what was said before."""
        messages = self.pending
        try:
            while True:
                messages.append(await self.hear())
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd else None, messages


@asynccontextmanager
async def talking(
    client: Client, path: str = "/v1/ws", *, host: str | None = None, **options: Any
) -> AsyncIterator[Talk]:
    url = client.url.replace("http", "ws", 1) + path
    if host is not None:
        url, options = f"ws://{host}{path}", {**options, "host": "127.0.0.1", "port": client.port}
    # No bound: a `response` repeats the whole answer.
    async with connect(url, proxy=None, compression=None, max_size=None, **options) as connection:
        yield Talk(connection)


def text_of(events: list[SocketMessage]) -> str:
    return "".join(message["event"]["content"] for message in events if message["event"]["type"] == "token")


def positions(events: list[SocketMessage]) -> list[int]:
    return [message["position"] for message in events]
