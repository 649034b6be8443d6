"""A TCP proxy that cuts, blocks or slows down connections."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Forwards bytes to `target`, a local port or a Unix socket, until a fault is switched on.

    A server that is started again has another port: set `target` to it, and to None while there is no server.
    """

    def __init__(self, target: int | Path | None) -> None:
        self.target = target
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._piece = 65_536
        self._delay = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_whole(self) -> bool:
        return self._flows.is_set() and not self._delay

    def cut(self) -> int:
        """Reset every connection and return their number."""
        pairs = list(self._pairs)
        for pair in pairs:
            for writer in pair:
                _reset(writer)
        return len(pairs)

    def swallow(self) -> None:
        """Stop forwarding without closing connections."""
        self._flows.clear()

    def drip(self, piece: int, delay: float) -> None:
        """Forward at most `piece` bytes at a time, with a delay."""
        self._piece, self._delay = piece, delay

    def mend(self) -> None:
        self._flows.set()
        self._piece, self._delay = 65_536, 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.target is None:
                raise ConnectionRefusedError
            if isinstance(self.target, Path):
                far_reader, far_writer = await asyncio.open_unix_connection(str(self.target))
            else:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _reset(writer)
            return
        pair = writer, far_writer
        self._pairs.add(pair)
        copies = [
            asyncio.create_task(self._copy(reader, far_writer)),
            asyncio.create_task(self._copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # The proxy is closed; asyncio would report the cancelled stream task as an error.
        finally:
            self._pairs.discard(pair)
            for copy in copies:
                copy.cancel()
            for each in pair:
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while chunk := await reader.read(self._piece):
                await self._flows.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(chunk)
                await writer.drain()

    async def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_INET:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


@asynccontextmanager
async def faulty(target: int | Path) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(target)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.close()
