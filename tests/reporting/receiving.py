"""A scripted HTTP server: what is sent to it, and what it answers, one request after the other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.serving import PATIENCE


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """`answers` are the statuses to come; after the last of them all is well. 0 is no answer at all."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        self.received: list[Received] = []
        self._news = asyncio.Event()

    async def count(self, number: int) -> list[Received]:
        """Waits until so many requests have come."""
        async with asyncio.timeout(PATIENCE):
            while len(self.received) < number:
                self._news.clear()
                await self._news.wait()
        return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.received.append(Received(first.split()[1], headers, body))
                self._news.set()
                status = self.answers.pop(0) if self.answers else 200
                if status == 0:
                    await asyncio.Event().wait()
                where = f"Location: {self.url}/elsewhere\r\n" if 300 <= status < 400 else ""
                writer.write(f"HTTP/1.1 {status} So\r\n{where}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(receiver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None] = accept
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
