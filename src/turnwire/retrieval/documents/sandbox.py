"""The sandbox for uploaded files: parsing in a separate process with limits on time and memory.

A hostile file can only hurt that process, which has no secrets: no environment and, on Linux, no network, no other
programs and no files but those of Python (see `confinement`).
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import PurePath

import msgspec

from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.confinement import confine
from turnwire.retrieval.documents.document import ParsedDocument

_MAX_MEMORY = 2 * 1024**3
_MAX_CHARACTERS = 50_000_000
# More than `_MAX_CHARACTERS` take. A parser that a hostile file controls may ignore that limit.
_MAX_OUTPUT = 256 * 1024**2
_NICENESS = 10
# -P: modules must not be imported from the folder that the server was started in.
_COMMAND = (sys.executable, "-P", "-m", "turnwire.retrieval.documents.sandbox")
# What Python may need to start, none of it a secret.
_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


async def parse_in_sandbox(name: str, content: bytes, timeout: float) -> ParsedDocument:
    """Parse a file in a separate process. Raise UnreadableDocumentError, also for a file that exceeds a limit."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        PurePath(name).suffix,
        str(int(timeout) + 1),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
    )
    try:
        async with asyncio.timeout(timeout):
            output = await _exchange(process, content)
    except TimeoutError:
        raise UnreadableDocumentError(f"it took longer than {timeout:g} seconds to read") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise UnreadableDocumentError("it cannot be read: the reader ran out of memory or time")
    try:
        parsed = msgspec.msgpack.decode(output, type=ParsedDocument | str)
    except msgspec.DecodeError as error:
        raise UnreadableDocumentError("it cannot be read: the reader failed") from error
    if isinstance(parsed, str):
        raise UnreadableDocumentError(parsed)
    return parsed


async def _exchange(process: asyncio.subprocess.Process, content: bytes) -> bytes:
    """Write the input and return the output. Raise UnreadableDocumentError if there is too much of it."""
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, output = process.stdin, bytearray()

    async def write() -> None:
        with suppress(ConnectionError):  # The process may end before it has read everything.
            stdin.write(content)
            await stdin.drain()
        stdin.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        while chunk := await process.stdout.read(65_536):
            output += chunk
            if len(output) > _MAX_OUTPUT:
                process.kill()
                break
    if len(output) > _MAX_OUTPUT:
        raise UnreadableDocumentError("it holds too much text")
    await process.wait()
    return bytes(output)


def main(suffix: str, seconds: int) -> None:
    """Parse standard input in this process, confined, and write the result to standard output."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        # Where processors are short, streams come before a document that takes long to read.
        os.nice(_NICENESS)
    except ImportError:
        pass  # Windows has no such limits; the timeout of the parent process still holds.
    confine()
    from turnwire.retrieval.documents.parser import parse

    try:
        result: ParsedDocument | str = parse(f"document{suffix}", sys.stdin.buffer.read())
        if len(result.text) > _MAX_CHARACTERS:
            # The parent process keeps the text in memory without a limit.
            result = f"it holds more than {_MAX_CHARACTERS:,} characters of text"
    except UnreadableDocumentError as error:
        result = str(error)
    sys.stdout.buffer.write(msgspec.msgpack.encode(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
