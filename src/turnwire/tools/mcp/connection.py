"""One connection to an MCP server, from its first message to its last, in a task of its own.

What the SDK has entered must be left in the same task, and the turn that needs a server first ends long before the
connection does. So a task holds it open, and turns only call through it. A connection that is over stays over.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from pydantic import ValidationError

from turnwire.core.errors import AgentError, ToolError
from turnwire.tools.mcp.server import MOST_TOOLS
from turnwire.tools.mcp.transports import Transport, watched

logger = logging.getLogger("turnwire.tools.mcp")

_MOST_PAGES = 100
_LIST_AGAIN_SECONDS = 60.0
_CLOSE_SECONDS = 15.0
_MESSAGE_CHARACTERS = 2_000


class McpConnection:
    """Begins to connect at once. `patience` is how long the server may take to answer and to tell its tools."""

    def __init__(self, server: str, transport: Transport, patience: float) -> None:
        self.tools: list[types.Tool] = []
        self._server = server
        self._patience = patience
        self._client: Client | None = None
        self._why_not = "it was closed"
        self._settled = asyncio.Event()
        self._ending = asyncio.Event()
        self._listed_at = 0.0
        # In an empty context: what happens here belongs to no turn, also not to the one that began it.
        self.task = asyncio.create_task(self._hold(transport), name=f"mcp-{server}", context=Context())
        # Not in the task itself: one that is cancelled before it begins never runs.
        self.task.add_done_callback(self._settle)

    @property
    def is_over(self) -> bool:
        return self._ending.is_set()

    async def ready(self) -> None:
        """Waits until it can be used. Raises AgentError, which says why it cannot."""
        await self._settled.wait()
        if self._client is None:
            raise AgentError(
                f"The MCP server {self._server!r} is not available: {self._why_not}.",
                code="mcp_unavailable",
                retryable=True,
            )
        if asyncio.get_running_loop().time() > self._listed_at + _LIST_AGAIN_SECONDS:
            await self._list_again(self._client)

    async def call(self, tool: str, arguments: dict[str, Any], progress: ProgressFnT) -> types.CallToolResult:
        """Cancelling it tells the server to stop. Raises ToolError for whatever the server did wrong."""
        assert self._client is not None
        try:
            return await self._client.call_tool(tool, arguments, progress_callback=progress)
        except MCPError as error:
            raise ToolError(self._explain(error)) from error
        except (RuntimeError, ValidationError) as error:
            why = "broke off" if self.is_over else "answered with something else than it promised"
            raise ToolError(f"the MCP server {self._server!r} {why}") from error

    async def close(self) -> None:
        """Returns when the program has ended, if it is one; nobody waits for one that cannot be killed."""
        self._ending.set()
        if not self._settled.is_set():
            self.task.cancel()
        _, unfinished = await asyncio.wait({self.task}, timeout=_CLOSE_SECONDS)
        for task in unfinished:
            task.cancel()

    async def _hold(self, transport: Transport) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._patience):
                    connecting = Client(watched(transport, self._ending), cache=None, message_handler=self._hear)
                    client = await stack.enter_async_context(connecting)
                    await self._list(client)
                self._client = client
                self._settled.set()
                await self._ending.wait()
        except Exception as error:
            self._fail(_first(error))

    def _settle(self, _: object) -> None:
        self._ending.set()
        self._settled.set()

    async def _list(self, client: Client) -> None:
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            # One more than can be offered, so that it is noticed.
            if cursor is None or len(found) > MOST_TOOLS:
                break
        self.tools = found
        self._listed_at = asyncio.get_running_loop().time()

    async def _list_again(self, client: Client) -> None:
        """If it goes wrong, the tools are those that were there before: calling them will tell."""
        try:
            async with asyncio.timeout(self._patience):
                await self._list(client)
        except (MCPError, RuntimeError, TimeoutError, ValidationError) as error:
            logger.warning("the MCP server %r did not tell its tools again: %s", self._server, type(error).__name__)

    async def _hear(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._listed_at = float("-inf")

    def _explain(self, error: MCPError) -> str:
        if self.is_over or error.code == types.CONNECTION_CLOSED:
            broke_off = "broke off; whether it has done what was asked is not known"
            return f"the connection to the MCP server {self._server!r} {broke_off}"
        if error.code == types.INVALID_REQUEST and "session" in error.message.lower():
            self._ending.set()  # The server has forgotten us; whoever calls next introduces us again.
            return f"the MCP server {self._server!r} was started anew; call again"
        return f"the MCP server {self._server!r} refused: {error.message[:_MESSAGE_CHARACTERS]}"

    def _fail(self, error: Exception) -> None:
        if self._client is not None:
            logger.debug("the connection to the MCP server %r ended: %s", self._server, type(error).__name__)
            return
        detail = ""
        match error:
            case TimeoutError():
                self._why_not = f"it did not answer within {self._patience:g} seconds"
            case httpx2.HTTPError():
                self._why_not = "it cannot be reached"
            case OSError():
                self._why_not, detail = "it cannot be started", f" ({error})"
            case MCPError(code=types.CONNECTION_CLOSED):
                self._why_not = "it ended before it had told its tools"
            case MCPError():
                self._why_not, detail = "it refused", f" ({error.message[:_MESSAGE_CHARACTERS]})"
            case _:
                self._why_not, detail = "it does not speak MCP as it should", f" ({type(error).__name__})"
        logger.warning("the MCP server %r is not available: %s%s", self._server, self._why_not, detail)


def _first(error: Exception) -> Exception:
    """What went wrong first in tasks that were stopped together."""
    return (
        _first(cast("ExceptionGroup[Exception]", error).exceptions[0]) if isinstance(error, ExceptionGroup) else error
    )
