"""How an MCP server is reached: as a program that is started here, or over HTTP."""

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

# An MCP server as a program: started, spoken to in lines, and ended with everything that it has started.


logger = logging.getLogger("turnwire.tools.mcp")

MESSAGE_BYTES = 8 * 1024 * 1024
"""The longest message; a server that sends more is not listened to any longer."""
PATIENCE_SECONDS = 2.0
"""How long a program may take to end before it is asked harder."""
_REAP_SECONDS = 5.0
_LOGGED_BYTES = 2_000
_CHUNK_BYTES = 64 * 1024


@asynccontextmanager
async def run_program(
    name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | str | None
) -> AsyncGenerator[tuple[Any, Any]]:
    """Two streams of messages, from the program and to it. Raises OSError if it cannot be started."""
    process = await _start(command, args, {**get_default_environment(), **env}, cwd)
    heard, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, said = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(task)
        for task in (_listen(name, process, heard), _speak(process, said, heard), _log(name, process))
    ]
    try:
        yield reading, writing
    finally:
        with anyio.CancelScope(shield=True):
            for stream in (reading, writing):
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
            limit=MESSAGE_BYTES,
            start_new_session=True,  # So that what it starts can be ended with it.
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Stopped half-way, asyncio would end the program alone, and wait for what that has started.
        with suppress(OSError):
            await _end(await starting)
        raise


async def _listen(name: str, process: Process, heard: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    assert process.stdout is not None
    with heard, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            while line := await process.stdout.readline():
                if message := _message(name, line):
                    await heard.send(message)
        except ValueError:
            logger.warning("the MCP server %r sent more than %d bytes at once", name, MESSAGE_BYTES)
    # To the end, though nobody listens any more: a program that cannot write cannot end.
    while await process.stdout.read(_CHUNK_BYTES):
        pass


def _message(name: str, line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        # Programs print things by mistake; whoever waits for an answer has a time limit.
        logger.debug("the MCP server %r wrote a line that is no message", name)
        return None


async def _speak(
    process: Process,
    said: MemoryObjectReceiveStream[SessionMessage],
    heard: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert process.stdin is not None
    try:
        with said:
            async for message in said:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{line}\n".encode())
                await process.stdin.drain()
    except ConnectionError:
        heard.close()  # One that does not listen any more has ended, as far as we are concerned.


async def _log(name: str, process: Process) -> None:
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:
            continue
        if not line:
            return
        logger.debug("%s: %s", name, line[:_LOGGED_BYTES].decode(errors="replace").rstrip())


async def _end(process: Process) -> None:
    """It is told that nothing more comes, then asked to end, then ended; and so is what it leaves behind."""
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
    # The pipes stay open if somebody who got away has inherited them, and nothing public closes them.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()
        await asyncio.sleep(0)


async def _has_ended(process: Process) -> bool:
    # Not `wait()`: that one waits for those too who have inherited the pipes.
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return process.returncode is not None


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


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
