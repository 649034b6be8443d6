"""An MCP server as a program: started, spoken to in lines, and ended with everything that it has started.

The SDK does this too, but takes a line of any length, in a time that grows with its square, and leaves stderr to us.
"""

import asyncio
import logging
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

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
