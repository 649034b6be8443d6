"""A network that does whatever networks do: between a server and its database, or between a client and a server."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Passes bytes on until it is told otherwise. `target` is a port of this machine, or a Unix socket."""

    def __init__(self, target: int | Path) -> None:
        self._target = target
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._piece = 65_536
        self._delay = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def is_whole(self) -> bool:
        return self._flows.is_set() and not self._delay

    def cut(self) -> int:
        """Resets every connection. Returns how many."""
        pairs = list(self._pairs)
        for pair in pairs:
            for writer in pair:
                _reset(writer)
        return len(pairs)

    def swallow(self) -> None:
        """From now on nothing gets through, and nobody is told: a black hole."""
        self._flows.clear()

    def drip(self, piece: int, delay: float) -> None:
        """From now on so few bytes get through at a time."""
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
            if isinstance(self._target, Path):
                far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
            else:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _reset(writer)
            return
        pair = writer, far_writer
        self._pairs.add(pair)
        ways = [
            asyncio.create_task(self._copy(reader, far_writer)),
            asyncio.create_task(self._copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # The proxy is closed; a stream's task that is said to be cancelled is reported as an error.
        finally:
            self._pairs.discard(pair)
            for way in ways:
                way.cancel()
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
