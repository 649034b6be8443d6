"""`McpServer`: the tools of an MCP server, for an agent that is given it among its tools."""

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

import mcp_types as types
from msgspec import Struct

from turnwire.core.errors import AgentError, ToolError, TurnwireError
from turnwire.tools.declaration import NAME, GivenArguments, Tool
from turnwire.tools.invocation import progress as tell_progress

if TYPE_CHECKING:
    from turnwire.tools.mcp.connection import McpConnection
    from turnwire.tools.mcp.transports import Transport

# What a server offers, as far as a model can be offered it. Nothing in it is believed: a server may be anybody's.


logger = logging.getLogger("turnwire.tools.mcp")

MOST_TOOLS = 128
"""More than this, model providers refuse."""
_DESCRIPTION_CHARACTERS = 8_000
_SCHEMA_CHARACTERS = 64_000
_NAME_CHARACTERS = 64


class Offered(Struct, frozen=True):
    """One tool: its name at the server, and what a model is told of it."""

    name: str
    called: str
    description: str
    parameters: dict[str, Any]


def offer(server: str, listed: Sequence[types.Tool], wanted: Collection[str] | None, prefix: str) -> list[Offered]:
    """Those that are wanted, under names that model providers take. What is left out is told in the log."""
    found: dict[str, Offered] = {}
    for tool in _chosen(server, listed, wanted):
        called = _fitting(prefix + tool.name)
        parameters: dict[str, Any] = {"properties": {}, **tool.input_schema, "type": "object"}
        if not called:
            _leave_out(server, tool.name, "models cannot call it by such a name")
        elif called in found:
            _leave_out(server, tool.name, f"another one is called {called!r} already")
        elif len(json.dumps(parameters)) > _SCHEMA_CHARACTERS:
            _leave_out(server, tool.name, "what it takes is longer than a model should read")
        elif len(found) == MOST_TOOLS:
            logger.warning("the MCP server %r offers more than %d tools; choose some with `tools`", server, MOST_TOOLS)
            break
        else:
            description = (tool.description or tool.title or "")[:_DESCRIPTION_CHARACTERS]
            found[called] = Offered(tool.name, called, description, parameters)
    return list(found.values())


def _chosen(server: str, listed: Sequence[types.Tool], wanted: Collection[str] | None) -> Iterator[types.Tool]:
    if wanted is not None and (missing := set(wanted) - {tool.name for tool in listed}):
        logger.warning("the MCP server %r has no tool %s", server, ", ".join(map(repr, sorted(missing))))
    return (tool for tool in listed if wanted is None or tool.name in wanted)


def _fitting(name: str) -> str:
    """The name with `_` for what must not be in it; empty if nothing of it would be left."""
    fitting = re.sub("[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARACTERS]
    return fitting if NAME.fullmatch(fitting) and fitting.strip("_") else ""


def _leave_out(server: str, tool: str, why: str) -> None:
    logger.warning("the tool %r of the MCP server %r is left out: %s", tool[:80], server, why)


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
        self._connections: list[McpConnection] = []
        self._listed: Sequence[object] = ()
        self._tools: list[Tool] = []

    async def open(self) -> Sequence[Tool]:
        """Raises AgentError `mcp_unavailable`."""

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

    async def _connected(self) -> "McpConnection":
        from turnwire.tools.mcp.connection import McpConnection

        if not self._connections or self._connections[-1].is_over:
            # Those that are over may still be winding down; closing waits for them.
            self._connections = [one for one in self._connections if not one.task.done()]
            self._connections.append(McpConnection(self.name, self._transport, self._connect_timeout))
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


# What a server's tool gave, as a tool of ours gives it: a value, or a `ToolError`.


def value_of(result: types.CallToolResult) -> Any:
    """Raises ToolError if the server says that the tool failed."""
    text = "\n".join(map(_told, result.content))
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    structured = result.structured_content
    if structured is not None and (not result.content or _says_the_same(result.content, structured)):
        return structured
    return text


def _says_the_same(content: Sequence[types.ContentBlock], structured: Any) -> bool:
    """Servers repeat structured content as text, for clients that know no better."""
    if len(content) != 1 or not isinstance(content[0], types.TextContent):
        return False
    try:
        return json.loads(content[0].text) == structured
    except (ValueError, RecursionError):
        return False


def _told(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return f"[{part.type}, {part.mime_type}, {_size(part.data)}, not shown]"
        case types.ResourceLink():
            return f"[resource {part.uri}{f': {part.description}' if part.description else ''}]"
        case types.EmbeddedResource():
            inside = part.resource
            if isinstance(inside, types.TextResourceContents):
                return inside.text
            return f"[resource {inside.uri}, {_size(inside.blob)}, not shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,} bytes"
