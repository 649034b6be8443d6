"""A proxy to the database that breaks connections at a chosen point."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

Fault = Literal["lose the request", "lose the reply", "go silent"]


class Proxy:
    """Forwards bytes until a request contains a chosen text."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._faults: list[tuple[bytes, Fault]] = []
        self._wires: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.is_open = True
        self.happened = asyncio.Event()

    def break_at(self, text: bytes, fault: Fault) -> None:
        """Cause the fault at the next request that contains this text."""
        self.happened.clear()
        self._faults.append((text, fault))

    def url(self, database: str) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{self.port}/{database}?sslmode=disable"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.close()
            return
        from_server, to_server = await asyncio.open_unix_connection(str(self._server))
        self._wires |= {writer, to_server}
        wire = _Wire(self, writer, to_server)
        await asyncio.gather(wire.pass_requests(reader), wire.pass_replies(from_server))

    def take_fault(self, request: bytes) -> Fault | None:
        for text, fault in self._faults:
            if text in request:
                self._faults.remove((text, fault))
                return fault
        return None

    def close(self) -> None:
        """Break all open connections."""
        for wire in self._wires:
            wire.close()


class _Wire:
    def __init__(self, proxy: Proxy, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to_client = to_client
        self._to_server = to_server
        self._fault: Fault | None = None

    async def pass_requests(self, requests: asyncio.StreamReader) -> None:
        while request := await _read(requests):
            if self._fault != "go silent":
                self._fault = self._proxy.take_fault(request) or self._fault
            if self._fault == "lose the request":
                self._proxy.happened.set()
                break
            if self._fault == "go silent":
                self._proxy.happened.set()
                continue
            self._to_server.write(request)
        self._close()

    async def pass_replies(self, replies: asyncio.StreamReader) -> None:
        while reply := await _read(replies):
            if self._fault == "lose the reply":
                # The server has carried out the request, and the client does not hear of it.
                self._proxy.happened.set()
                break
            if self._fault is None:
                self._to_client.write(reply)
        if self._fault != "go silent":
            self._close()

    def _close(self) -> None:
        self._to_client.close()
        self._to_server.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65_536)
    except OSError:
        return b""


@asynccontextmanager
async def proxied(folder: Path) -> AsyncIterator[Proxy]:
    """Run a proxy to the server whose socket is in this folder."""
    proxy = Proxy(folder / ".s.PGSQL.5432")
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.close()
        await asyncio.sleep(0)
