"""A TCP proxy that cuts every connection after so many bytes of the response."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.serving import PATIENCE, Client


class Cutter:
    """The proxy. `budget` returns how many bytes a connection lets through; `cuts` counts the connections cut."""

    def __init__(self, port: int, budget: Callable[[], int]) -> None:
        self._port = port
        self._budget = budget
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        asking = asyncio.create_task(_copy(reader, to_server))
        self._open |= {writer, to_server}
        try:
            await self._answer(from_server, writer)
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            to_server.transport.abort()
            if not writer.is_closing():
                writer.transport.abort()  # The client has left.
            self._open -= {writer, to_server}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        remaining = self._budget()
        while chunk := await reader.read(min(remaining, 65_536) or 1):
            if remaining == 0:
                self.cuts += 1
                writer.transport.abort()
                return
            remaining -= len(chunk)
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async def close(self) -> None:
        # A connection that its client keeps for later ends with both of its sides.
        for writer in self._open:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65_536):
            writer.write(chunk)
    except ConnectionError:
        pass


@asynccontextmanager
async def cutting(server: Client, budget: Callable[[], int]) -> AsyncIterator[tuple[Client, Cutter]]:
    """Yield a client of the server behind the proxy, and the proxy."""
    cutter = Cutter(server.port, budget)
    listening = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", {"Connection": "close"})
    try:
        yield client, cutter
    finally:
        await client.http.aclose()
        listening.close()
        await cutter.close()
