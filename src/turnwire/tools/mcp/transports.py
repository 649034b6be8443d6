"""How an MCP server is reached: as a program that is started here, or over HTTP."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

logger = logging.getLogger("turnwire.tools.mcp")

Transport = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]
"""Connects once: two streams of messages, from the server and to it."""

_CONNECT_SECONDS = 10.0
_LINE_CHARACTERS = 2_000


def over_stdio(
    name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | str | None
) -> Transport:
    """The program is given `env` and the few variables that every program needs, never the rest of ours."""
    parameters = StdioServerParameters(command=command, args=list(args), env=dict(env), cwd=cwd)

    @asynccontextmanager
    async def connect() -> AsyncGenerator[tuple[Any, Any]]:
        # A file of the operating system's, as the child inherits it.
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as errors:
            threading.Thread(target=_log_lines, args=(name, reading), daemon=True).start()
            async with stdio_client(parameters, errlog=errors) as streams:
                errors.close()  # The child's is the only one left, so that reading ends with it.
                yield streams

    return connect


def _log_lines(name: str, reading: int) -> None:
    with os.fdopen(reading, errors="replace") as lines:
        while line := lines.readline(_LINE_CHARACTERS):
            logger.debug("%s: %s", name, line.rstrip())


def over_http(url: str, headers: Mapping[str, str], timeout: float) -> Transport:
    """`timeout` is the longest that a call may take. Headers are never sent to another origin."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[tuple[Any, Any]]:
        limits = httpx2.Timeout(_CONNECT_SECONDS, read=timeout + 300)
        # In a thread, because the certificates that this machine trusts are read from its disk.
        client = await asyncio.to_thread(lambda: httpx2.AsyncClient(headers=dict(headers), timeout=limits))
        async with client, streamable_http_client(url, http_client=client) as streams:
            yield streams

    return connect


class _Watched:
    """A stream from a server that tells when it has ended: the SDK itself tells only whoever calls next."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream = stream
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._stream)

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        await self._stream.aclose()


@asynccontextmanager
async def watched(transport: Transport, ended: asyncio.Event) -> AsyncGenerator[tuple[Any, Any]]:
    """Connects, and sets `ended` when nothing more will come from the server."""
    async with transport() as (reading, writing):
        yield _Watched(reading, ended), writing
