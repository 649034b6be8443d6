"""A PostgreSQL database for several processes, and a reader that may switch between them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx

from tests.postgres_server import shared_databases, shared_server
from tests.serving import Client, Frame, Stream

# A pooled connection could be closed at the moment it is used again.
NEW_CONNECTION = {"Connection": "close"}


@contextmanager
def temporary_database() -> Iterator[str]:
    """Yield the URL of an empty database. All processes that use it must end before the block does."""
    databases = shared_databases()
    name = databases.take()
    yield shared_server().url(name)
    databases.give_back(name)


class Follower:
    """A reader of one turn that reconnects to another server after the last id it has seen."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.seen: list[Frame] = []
        self.moves = 0
        """The number of connections."""
        self.refusals = 0
        """The number of refused connections."""

    async def follow(self, servers: Callable[[], Sequence[Client]], first: int = 0) -> None:
        """Read to the end. `servers` returns the servers that run now."""
        while not self.is_done:
            running = servers()
            server = running[(first + self.moves) % len(running)]
            try:
                async with server.stream("GET", f"/v1/turns/{self.turn_id}/events", headers=self._headers()) as stream:
                    await self._read(stream)
            except (httpx.TransportError, AssertionError):
                self.refusals += 1
                await asyncio.sleep(0.05)
            self.moves += 1

    def _headers(self) -> dict[str, str]:
        return {**NEW_CONNECTION, "Last-Event-ID": str(self.seen[-1].id)} if self.seen else NEW_CONNECTION

    async def _read(self, stream: Stream) -> None:
        while (block := await stream.next_block()) is not None:
            if block.id is not None:
                self.seen.append(block)

    @property
    def is_done(self) -> bool:
        return bool(self.seen) and self.seen[-1].type == "done"

    def check(self, text: str) -> None:
        """Assert that the whole turn was read, every event once."""
        assert [frame.position for frame in self.seen] == list(range(1, len(self.seen) + 1))
        assert "".join(frame.event["content"] for frame in self.seen if frame.type == "token") == text
        assert self.seen[-1].event["outcome"] == "completed"
