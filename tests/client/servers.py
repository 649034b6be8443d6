"""A proxy that aborts connections on demand, and a server with scripted responses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class CuttingProxy:
    """A proxy in front of a server that aborts its connections on demand."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.requests: list[bytes] = []
        self.cut_after: int | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(self._up(reader, back), self._down(upstream, writer), return_exceptions=True)
        writer.close()
        back.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            self.requests.append(chunk)
            writer.write(chunk)
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        while chunk := await reader.read(64):
            writer.write(chunk)
            passed += len(chunk)
            if self.cut_after is not None and passed > self.cut_after:
                self.cut()

    def cut(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def proxied(port: int) -> AsyncIterator[tuple[CuttingProxy, str]]:
    proxy = CuttingProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.cut()


@asynccontextmanager
async def scripted(answer: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """Run a server that sends the test's response and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        writer.write(answer(head + await reader.readexactly(length)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
