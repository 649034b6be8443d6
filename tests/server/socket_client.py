"""A client of `/v1/ws` that knows only what the guide says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.serving import PATIENCE, Client

Told = dict[str, Any]


class Talk:
    """An open socket. What was read and not asked for is kept."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.kept: list[Told] = []
        self._count = 0

    async def say(self, kind: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def hear(self) -> Told:
        """Return the next message."""
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.connection.recv())

    async def ask(self, kind: str, **fields: Any) -> Told:
        """Says something and waits for its answer; what comes before that is kept."""
        self._count += 1
        await self.say(kind, id=f"m{self._count}", **fields)
        while (told := await self.hear()).get("id") != f"m{self._count}":
            self.kept.append(told)
        return told

    async def refused(self, kind: str, **fields: Any) -> str:
        """Return the error code of a refused message."""
        told = await self.ask(kind, **fields)
        assert told["type"] == "error", told
        assert told["error"]["message"]
        return told["error"]["code"]

    async def events(self, turn_id: str, until: str = "done") -> list[Told]:
        """Return the unread events of a turn, up to the first one of a type."""
        found: list[Told] = []
        others: list[Told] = []
        while not found or found[-1]["event"]["type"] != until:
            told = self.kept.pop(0) if self.kept else await self.hear()
            is_wanted = told["type"] == "event" and told["turn_id"] == turn_id
            (found if is_wanted else others).append(told)
        self.kept[:0] = others
        return found

    async def closed(self) -> tuple[int | None, list[Told]]:
        """Waits for the end; its code, and what was said before."""
        told = self.kept
        try:
            while True:
                told.append(await self.hear())
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd else None, told


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


def text_of(events: list[Told]) -> str:
    return "".join(told["event"]["content"] for told in events if told["event"]["type"] == "token")


def positions(events: list[Told]) -> list[int]:
    return [told["position"] for told in events]
