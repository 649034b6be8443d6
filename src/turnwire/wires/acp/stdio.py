"""ACP over stdin and stdout."""

import asyncio
import sys

from turnwire.wires.acp.connection import MAX_LINE, RpcConnection
from turnwire.wires.acp.hosts import ServerHost
from turnwire.wires.acp.routes import AcpAgent


async def serve_stdio(host: ServerHost, version: str, agent: str | None = None) -> None:
    """Serve the sessions of a host until stdin ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    answering = AcpAgent(host, version, agent)
    connection = RpcConnection(reader, writer, answering.handle)
    answering.peer = connection
    try:
        await connection.run()
    finally:
        await answering.close()
