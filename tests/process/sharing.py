"""Several processes on one PostgreSQL database, and a reader that does not mind which of them it reads from."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx

from tests.postgres_server import shared_databases, shared_server
from tests.serving import Client, Frame, Stream

# Nobody may be refused because a connection was kept that is closed in that very moment.
ANEW = {"Connection": "close"}


@contextmanager
def a_database() -> Iterator[str]:
    """The address of an empty database. All processes that use it must be gone before the block ends."""
    databases = shared_databases()
    name = databases.take()
    yield shared_server().url(name)
    databases.give_back(name)


class Follower:
    """Reads a turn to its end. When it is sent away or cut off, it goes on elsewhere, after the last id it has seen."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.seen: list[Frame] = []
        self.moves = 0
        """How often it had to go elsewhere."""
        self.refusals = 0
        """How often nobody was there who would take it."""

    async def follow(self, servers: Callable[[], Sequence[Client]], first: int = 0) -> None:
        """`servers` tells those there are now."""
        while not self.is_done:
            there = servers()
            server = there[(first + self.moves) % len(there)]
            try:
                async with server.stream("GET", f"/v1/turns/{self.turn_id}/events", headers=self._headers()) as stream:
                    await self._read(stream)
            except (httpx.TransportError, AssertionError):
                self.refusals += 1
                await asyncio.sleep(0.05)
            self.moves += 1

    def _headers(self) -> dict[str, str]:
        return {**ANEW, "Last-Event-ID": str(self.seen[-1].id)} if self.seen else ANEW

    async def _read(self, stream: Stream) -> None:
        while (block := await stream.next_block()) is not None:
            if block.id is not None:
                self.seen.append(block)

    @property
    def is_done(self) -> bool:
        return bool(self.seen) and self.seen[-1].type == "done"

    def check(self, text: str) -> None:
        """It has seen the whole turn, every event once."""
        assert [frame.position for frame in self.seen] == list(range(1, len(self.seen) + 1))
        assert "".join(frame.event["content"] for frame in self.seen if frame.type == "token") == text
        assert self.seen[-1].event["outcome"] == "completed"
