"""`McpServer`: the tools of an MCP server as a toolset."""

import json
import logging
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from turnwire.core.errors import AgentError, ToolError, TurnwireError
from turnwire.tools.declaration import MAX_OUTPUT, NAME, Tool, UncheckedArguments
from turnwire.tools.invocation import progress as report_progress

if TYPE_CHECKING:
    # The SDK is an optional extra: nothing of it is imported before a server is configured.
    import mcp_types as types

    from turnwire.tools.mcp.connection import McpConnection
    from turnwire.tools.mcp.transports import Transport

logger = logging.getLogger("turnwire.tools.mcp")

MAX_TOOLS = 128
"""Model providers refuse more."""
_MAX_DESCRIPTION = 8_000
_MAX_SCHEMA = 64_000
_MAX_NAME = 64
_MAX_PROGRESS_REPORTS = 500
_MAX_PROGRESS_TEXT = 1_000
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class McpServer:
    """An MCP server: a program to start (`command`, `args`, `env`, `cwd`), or a `url` with `headers`.

    The first turn that needs it connects; the connection is kept, and made again after it was lost. `tools` selects
    some of its tools, `prefix` goes before their names. `timeout` and `connect_timeout` are in seconds, `max_output` in
    characters; with `needs_approval` a person must approve each call. Raise ValueError for bad options, and
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
        max_output: int = MAX_OUTPUT,
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
        self._selected = None if tools is None else frozenset(tools)
        self._prefix = prefix
        self.timeout = timeout
        self._connect_timeout = connect_timeout
        self._max_output = max_output
        self._transport: Transport = (
            transports.over_http(_checked_url(name, url), _checked_headers(name, headers or {}), timeout)
            if command is None
            else transports.over_stdio(name, command, args, env or {}, cwd)
        )
        self._connections: list[McpConnection] = []
        self._listed: Sequence[object] = ()
        self._tools: list[Tool] = []

    async def open(self) -> Sequence[Tool]:
        """Return the tools of the server. Raise AgentError `mcp_unavailable`."""
        connection = await self._connected()
        if connection.tools is not self._listed:
            self._listed = connection.tools
            offered = _offer(self.name, connection.tools, self._selected, self._prefix)
            self._tools = [self._tool(item) for item in offered]
        return self._tools

    async def close(self) -> None:
        """Close the connection, and end the program if there is one."""
        connections, self._connections = self._connections, []
        for connection in connections:
            await connection.close()

    @property
    def is_connected(self) -> bool:
        """Return True while the newest connection is open, or being opened."""
        return bool(self._connections) and not self._connections[-1].is_over

    async def _connected(self) -> "McpConnection":
        from turnwire.tools.mcp.connection import McpConnection

        if not self.is_connected:
            # Ended connections that are still shutting down are kept, because `close` waits for them.
            self._connections = [connection for connection in self._connections if not connection.task.done()]
            self._connections.append(McpConnection(self.name, self._transport, self._connect_timeout))
        connection = self._connections[-1]
        await connection.ready()
        return connection

    def _tool(self, offered: "_OfferedTool") -> Tool:
        async def call(**arguments: Any) -> Any:
            return await self._call(offered.remote_name, arguments)

        return Tool(
            name=offered.name,
            description=offered.description,
            parameters=offered.parameters,
            function=call,
            arguments=UncheckedArguments(),
            timeout=self.timeout,
            max_output=self._max_output,
            needs_approval=self.needs_approval,
        )

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        try:
            connection = await self._connected()
        except AgentError as error:
            raise ToolError(str(error)) from error
        reporter = _ProgressReporter()
        try:
            return await connection.call(tool, arguments, reporter.report)
        finally:
            reporter.is_over = True


class _ProgressReporter:
    """Progress of one call: received in the connection's task, reported in the context of the calling turn."""

    def __init__(self) -> None:
        self.is_over = False
        self._reports = 0
        self._context = copy_context()

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._reports += 1
        if self.is_over or self._reports > _MAX_PROGRESS_REPORTS:
            return
        fraction = progress / total if total else None
        if fraction is not None:
            fraction = min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else None
        text = None if message is None else message[:_MAX_PROGRESS_TEXT]
        with suppress(TurnwireError):  # The turn may have ended meanwhile.
            self._context.run(report_progress, text, fraction)


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
    # A secret that was read from a file ends with a line break. Checked here, because a later error would quote it.
    checked = {header: value.strip() for header, value in headers.items()}
    for header, value in checked.items():
        if not (_HEADER_NAME.fullmatch(header) and value.isascii() and value.isprintable()):
            raise ValueError(f"the header {header!r} of the MCP server {name!r} has characters that it cannot have")
    return checked


# The tools of a server as a model may see them. Nothing that the server sends is trusted.


class _OfferedTool(Struct, frozen=True):
    """A tool as the model sees it, with the server's own name for it."""

    remote_name: str
    name: str
    description: str
    parameters: dict[str, Any]


def _offer(
    server: str, listed: "Sequence[types.Tool]", selected: Collection[str] | None, prefix: str
) -> list[_OfferedTool]:
    """Return the selected tools, under names that model providers accept; skipped tools are logged."""
    offered: dict[str, _OfferedTool] = {}
    for tool in _selected_tools(server, listed, selected):
        name = _valid_name(prefix + tool.name)
        parameters: dict[str, Any] = {"properties": {}, **tool.input_schema, "type": "object"}
        if not name:
            _log_skipped(server, tool.name, "models cannot call it by such a name")
        elif name in offered:
            _log_skipped(server, tool.name, f"another one is called {name!r} already")
        elif len(json.dumps(parameters)) > _MAX_SCHEMA:
            _log_skipped(server, tool.name, "its schema is too long for a model")
        elif len(offered) == MAX_TOOLS:
            logger.warning("the MCP server %r offers more than %d tools; choose some with `tools`", server, MAX_TOOLS)
            break
        else:
            description = (tool.description or tool.title or "")[:_MAX_DESCRIPTION]
            offered[name] = _OfferedTool(tool.name, name, description, parameters)
    return list(offered.values())


def _selected_tools(
    server: str, listed: "Sequence[types.Tool]", selected: Collection[str] | None
) -> "Iterator[types.Tool]":
    if selected is not None and (missing := set(selected) - {tool.name for tool in listed}):
        logger.warning("the MCP server %r has no tool %s", server, ", ".join(map(repr, sorted(missing))))
    return (tool for tool in listed if selected is None or tool.name in selected)


def _valid_name(name: str) -> str:
    """Return the name with `_` for every invalid character, or an empty string if no valid one is left."""
    valid = re.sub("[^a-zA-Z0-9_-]", "_", name)[:_MAX_NAME]
    return valid if NAME.fullmatch(valid) and valid.strip("_") else ""


def _log_skipped(server: str, tool: str, reason: str) -> None:
    logger.warning("the tool %r of the MCP server %r is skipped: %s", tool[:80], server, reason)
