"""Running MCP servers, and an agent with their tools."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import PlainTextResponse

from tests.contracts.turns import BOUND
from tests.core.desk import Desk
from tests.scripted_model import ScriptedModel
from tests.serving import within
from tests.tools.mcp_server import build
from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.core.log.events import Event, ToolResultEvent
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore
from turnwire.tools import McpServer

SCRIPT = Path(__file__).with_name("mcp_server.py")


def program(name: str = "test", *arguments: str, **options: Any) -> McpServer:
    """Return a server that is started as a program."""
    return McpServer(name, command=sys.executable, args=[str(SCRIPT), *arguments], **options)


class Web:
    """A server over HTTP. `seen` has the headers of its requests."""

    def __init__(self, port: int, server: uvicorn.Server) -> None:
        self.port = port
        self._server = server
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.seen: list[dict[str, str]] = []

    async def stop(self) -> None:
        """Stop like a killed server, as far as its clients can tell."""
        server, state = self._server, self._server.server_state
        for item in server.servers:
            item.close()
        for connection in tuple(state.connections):
            connection.transport.abort()
        if not server.lifespan.should_exit:
            server.lifespan.should_exit = True
            await within(server.lifespan.shutdown())
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=BOUND)


def listen(port: int) -> socket.socket:
    # By its number: asyncio sends small writes at once only where the protocol of a socket is TCP.
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    # The kernel remembers the connections of an earlier server on this port for a while.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    listening.setblocking(False)
    return listening


@asynccontextmanager
async def web(
    behaviour: str = "kind", *, marks: Path | None = None, port: int = 0, year: int = 2026, token: str | None = None
) -> AsyncIterator[Web]:
    """Serve the same tools over streamable HTTP until the block ends; the protocol of 2025 has sessions."""
    listening = listen(port)
    inner = build(behaviour, marks).streamable_http_app()

    async def watching(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            served.seen.append(headers)
            if token is not None and headers.get("authorization") != f"Bearer {token}":
                return await PlainTextResponse("Who are you?", 401)(scope, receive, send)
            if year == 2025 and headers.get("mcp-method") == "server/discover":
                return await PlainTextResponse("What is that?", 404)(scope, receive, send)
        await inner(scope, receive, send)

    config = uvicorn.Config(watching, ws="none", lifespan="on", log_config=None, access_log=False)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    served = Web(listening.getsockname()[1], server)
    await server.startup(sockets=[listening])
    try:
        yield served
    finally:
        await served.stop()


@asynccontextmanager
async def open_agent(server: ScriptedModel, *tools: Any, **options: Any) -> AsyncIterator[Desk]:
    agent = ChatCompletionsAgent("small", base_url=server.url, tools=tools, retries=0, **options)
    store = MemoryStore()
    runner = TurnRunner(store, {"agent": agent}, Limits())
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        await within(runner.close(), 30)
        await within(agent.close(), 30)


def results(events: list[Event]) -> list[ToolResultEvent]:
    return [event for event in events if isinstance(event, ToolResultEvent)]
