"""How an MCP server is reached: as a program that is started here, or over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
from mcp.client.streamable_http import streamable_http_client

from turnwire.tools.mcp.programs import MESSAGE_BYTES, run_program

Transport = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]
"""Connects once: two streams of messages, from the server and to it."""

_CONNECT_SECONDS = 10.0


def over_stdio(
    name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | str | None
) -> Transport:
    """The program is given `env` and the few variables that every program needs, never the rest of ours."""
    return lambda: run_program(name, command, args, env, cwd)


def over_http(url: str, headers: Mapping[str, str], timeout: float) -> Transport:
    """`timeout` is the longest that a call may take. Headers are never sent to another origin."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[tuple[Any, Any]]:
        # In a thread, because the certificates that this machine trusts are read from its disk.
        client = await asyncio.to_thread(make_client)
        async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MESSAGE_BYTES) as streams:
            yield streams

    def make_client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=timeout + 300),
            event_hooks={"response": [_bound]},
        )

    return connect


async def _bound(response: httpx2.Response) -> None:
    """Bounds a body that is one message. One that is a stream of them may be endless; each is bounded by the SDK."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise httpx2.DecodingError("compressed, although it was asked not to be", request=response.request)
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MESSAGE_BYTES:
                raise httpx2.StreamError(f"more than {MESSAGE_BYTES:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


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
