"""An HTTP server for tests that records requests and answers with scripted statuses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.serving import PATIENCE

ENDLESS = 1


class ReceivedRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """`statuses` are sent in order, then 200. 0 leaves the request unanswered, ENDLESS is a 200 without end."""

    def __init__(self) -> None:
        self.url = ""
        self.statuses: list[int] = []
        self.endless_bytes = 0
        self.received: list[ReceivedRequest] = []
        self._received = asyncio.Event()

    async def count(self, number: int) -> list[ReceivedRequest]:
        """Wait for this number of requests and return them."""
        async with asyncio.timeout(PATIENCE):
            while len(self.received) < number:
                self._received.clear()
                await self._received.wait()
        return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.received.append(ReceivedRequest(first.split()[1], headers, body))
                self._received.set()
                status = self.statuses.pop(0) if self.statuses else 200
                if status == 0:
                    await asyncio.Event().wait()
                if status == ENDLESS:
                    writer.write(b"HTTP/1.1 200 So\r\nTransfer-Encoding: chunked\r\n\r\n")
                    while True:
                        writer.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                        await writer.drain()
                        self.endless_bytes += 0x10000
                location = f"Location: {self.url}/elsewhere\r\n" if 300 <= status < 400 else ""
                writer.write(f"HTTP/1.1 {status} So\r\n{location}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def run_receiver() -> AsyncIterator[Receiver]:
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
