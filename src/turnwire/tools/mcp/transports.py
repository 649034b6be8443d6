"""Transports to MCP servers: a program with stdio, or HTTP."""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

logger = logging.getLogger("turnwire.tools.mcp")

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The longest message; the connection to a server that sends more is closed."""
GRACE_SECONDS = 2.0
"""The time a program has to end before the next, stronger signal."""
_REAP_SECONDS = 5.0
_MAX_LOGGED_BYTES = 2_000
_CHUNK_BYTES = 64 * 1024
_CONNECT_SECONDS = 10.0

Transport = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]
"""Factory of one connection: two streams of messages, from the server and to it."""


# Programs: started here, spoken to in lines, and ended together with their child processes.


def over_stdio(
    name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | str | None
) -> Transport:
    """Return a transport to a program, which gets `env` and the few variables every program needs, but no others."""
    return lambda: _run_program(name, command, args, env, cwd)


@asynccontextmanager
async def _run_program(
    name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | str | None
) -> AsyncGenerator[tuple[Any, Any]]:
    """Yield two streams of messages, from the program and to it. Raise OSError if it cannot be started."""
    process = await _start(command, args, {**get_default_environment(), **env}, cwd)
    received, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(task)
        for task in (
            _read_stdout(name, process, received),
            _write_stdin(process, outgoing, received),
            _log_stderr(name, process),
        )
    ]
    try:
        yield read_stream, write_stream
    finally:
        with anyio.CancelScope(shield=True):
            for stream in (read_stream, write_stream):
                stream.close()
            await _end(process)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _start(command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | str | None) -> Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            command,
            *args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            cwd=cwd,
            limit=MAX_MESSAGE_BYTES,
            start_new_session=True,  # So that its child processes can be ended with it.
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # On its own, asyncio would end the program but not its child processes, and wait for those.
        with suppress(OSError):
            await _end(await starting)
        raise


async def _read_stdout(
    name: str, process: Process, received: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    assert process.stdout is not None
    with received, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            while line := await process.stdout.readline():
                if message := _message(name, line):
                    await received.send(message)
        except ValueError:
            logger.warning("the MCP server %r sent more than %d bytes at once", name, MAX_MESSAGE_BYTES)
    # Drained to the end, because a program that blocks on a full pipe cannot end.
    while await process.stdout.read(_CHUNK_BYTES):
        pass


def _message(name: str, line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # Programs print to stdout by mistake; a missing response runs into its timeout.
        logger.debug("the MCP server %r wrote a line that is not a message", name)
        return None


async def _write_stdin(
    process: Process,
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert process.stdin is not None
    try:
        with outgoing:
            async for message in outgoing:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{line}\n".encode())
                await process.stdin.drain()
    except ConnectionError:
        received.close()  # A program that has closed its stdin counts as ended.


async def _log_stderr(name: str, process: Process) -> None:
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:
            continue
        if not line:
            return
        logger.debug("%s: %s", name, line[:_MAX_LOGGED_BYTES].decode(errors="replace").rstrip())


async def _end(process: Process) -> None:
    """Close stdin, then terminate, then kill the program and its child processes."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if await _has_ended(process):
            break
        _signal(process, number)
    await _has_ended(process)
    _signal(process, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await process.wait()
    # An escaped child process that inherited the pipes keeps them open, and no public method closes them.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
        await asyncio.sleep(0)


async def _has_ended(process: Process) -> bool:
    # Not `wait()`, which also waits for the processes that inherited the pipes.
    deadline = asyncio.get_running_loop().time() + GRACE_SECONDS
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


# HTTP.


def over_http(url: str, headers: Mapping[str, str], timeout: float) -> Transport:
    """Return a transport to a URL. `timeout` bounds a call. Headers are never sent to another origin."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[tuple[Any, Any]]:
        # In a thread, because the trusted certificates are read from disk.
        client = await asyncio.to_thread(make_client)
        async with (
            client,
            streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            yield streams

    def make_client() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(_CONNECT_SECONDS, read=timeout + 300),
            event_hooks={"response": [_limit_body]},
        )

    return connect


async def _limit_body(response: httpx2.Response) -> None:
    """Limit a body that is one message. The SDK limits the messages of an event stream, which may be endless."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise httpx2.DecodingError("compressed, although it was asked not to be", request=response.request)
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _LimitedStream(cast("httpx2.AsyncByteStream", response.stream))


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"more than {MAX_MESSAGE_BYTES:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


# Watching for the end of a connection.


class _WatchedStream:
    """A stream from a server that sets an event at its end, which the SDK reports only with the next call."""

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
async def watch(transport: Transport, ended: asyncio.Event) -> AsyncGenerator[tuple[Any, Any]]:
    """Connect, and set `ended` when the server has closed the connection."""
    async with transport() as (read_stream, write_stream):
        yield _WatchedStream(read_stream, ended), write_stream
