"""`McpServer`: the tools of an MCP server, for an agent that is given it among its tools."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from turnwire.core.errors import AgentError, ToolError, TurnwireError
from turnwire.tools.arguments import GivenArguments
from turnwire.tools.declaring import NAME, Tool
from turnwire.tools.running import progress as tell_progress

if TYPE_CHECKING:
    from turnwire.tools.mcp.connection import Connection
    from turnwire.tools.mcp.offered import Offered
    from turnwire.tools.mcp.transports import Transport

_MOST_PROGRESS_OF_A_CALL = 500
_PROGRESS_CHARACTERS = 1_000
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class McpServer:
    """A server that is started as a program (`command`, `args`, `env`, `cwd`), or reached at a `url` with `headers`.

    It is connected to by the first turn that needs it, kept, and connected to again after it has died. `tools` chooses
    among its tools, `prefix` goes before their names. `timeout` and `connect_timeout` are in seconds, `max_output` in
    characters; `needs_approval` makes a person decide about each call. Raises ValueError for what cannot be, and
    ImportError, which says what to install.
    """

    def __init__(
        self,
        name: str,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        tools: Iterable[str] | None = None,
        prefix: str = "",
        timeout: float = 60.0,
        connect_timeout: float = 30.0,
        max_output: int = 20_000,
        needs_approval: bool = False,
    ) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"an MCP server cannot be called {name!r}: use letters, digits, _ and -, at most 64")
        if (command is None) == (url is None):
            raise ValueError(f"the MCP server {name!r} needs a command that starts it, or its url, and not both")
        if prefix and not NAME.fullmatch(prefix):
            raise ValueError(f"the prefix of the MCP server {name!r} may have letters, digits, _ and -")
        try:
            from turnwire.tools.mcp import transports
        except ImportError as error:
            raise ImportError("MCP servers need more than is installed: pip install 'turnwire[mcp]'") from error
        self.name = name
        self.needs_approval = needs_approval
        self._wanted = None if tools is None else frozenset(tools)
        self._prefix = prefix
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._max_output = max_output
        self._transport: Transport = (
            transports.over_http(_checked_url(name, url), _checked_headers(name, headers or {}), timeout)
            if command is None
            else transports.over_stdio(name, command, args, env or {}, cwd)
        )
        self._connections: list[Connection] = []
        self._listed: Sequence[object] = ()
        self._tools: list[Tool] = []

    async def open(self) -> Sequence[Tool]:
        """Raises AgentError `mcp_unavailable`."""
        from turnwire.tools.mcp.offered import offer

        connection = await self._connected()
        if connection.tools is not self._listed:
            self._listed = connection.tools
            offered = offer(self.name, connection.tools, self._wanted, self._prefix)
            self._tools = [self._tool(one) for one in offered]
        return self._tools

    async def close(self) -> None:
        """Ends the connection, and the program if it is one."""
        connections, self._connections = self._connections, []
        for connection in connections:
            await connection.close()

    async def _connected(self) -> "Connection":
        from turnwire.tools.mcp.connection import Connection

        if not self._connections or self._connections[-1].is_over:
            # Those that are over may still be winding down; closing waits for them.
            self._connections = [one for one in self._connections if not one.task.done()]
            self._connections.append(Connection(self.name, self._transport, self._connect_timeout))
        connection = self._connections[-1]
        await connection.ready()
        return connection

    def _tool(self, offered: "Offered") -> Tool:
        async def call(**arguments: Any) -> Any:
            return await self._call(offered.name, arguments)

        return Tool(
            name=offered.called,
            description=offered.description,
            parameters=offered.parameters,
            function=call,
            arguments=GivenArguments(),
            timeout=self._timeout,
            max_output=self._max_output,
            needs_approval=self.needs_approval,
        )

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        from turnwire.tools.mcp.results import value_of

        try:
            connection = await self._connected()
        except AgentError as error:
            raise ToolError(str(error)) from error
        telling = _Telling()
        try:
            return value_of(await connection.call(tool, arguments, telling.hear))
        finally:
            telling.is_over = True


class _Telling:
    """Progress of one call, which is heard in the connection's task and told in the turn that made the call."""

    def __init__(self) -> None:
        self.is_over = False
        self._heard = 0
        self._turn = copy_context()

    async def hear(self, progress: float, total: float | None, message: str | None) -> None:
        self._heard += 1
        if self.is_over or self._heard > _MOST_PROGRESS_OF_A_CALL:
            return
        fraction = progress / total if total else None
        if fraction is not None:
            fraction = min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else None
        text = None if message is None else message[:_PROGRESS_CHARACTERS]
        with suppress(TurnwireError):  # The turn may have ended meanwhile.
            self._turn.run(tell_progress, text, fraction)


def _checked_url(name: str, url: str | None) -> str:
    try:
        parts = urlsplit(url or "")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or url is None:
        raise ValueError(f"the url of the MCP server {name!r} must be like https://example.org/mcp")
    return url


def _checked_headers(name: str, headers: Mapping[str, str]) -> dict[str, str]:
    # A secret that is read from a file ends with a line break. Later, the error for a bad one would quote it.
    checked = {header: value.strip() for header, value in headers.items()}
    for header, value in checked.items():
        if not (_HEADER.fullmatch(header) and value.isascii() and value.isprintable()):
            raise ValueError(f"the header {header!r} of the MCP server {name!r} has characters that it cannot have")
    return checked
