"""The sandbox for uploaded files: parsing in a separate process with limits on time and memory.

A hostile file can only hurt that process.
"""

import asyncio
import sys
from pathlib import PurePath

import msgspec

from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.document import ParsedDocument

_MAX_MEMORY = 2 * 1024**3
_MAX_CHARACTERS = 50_000_000
# -P: modules must not be imported from the folder that the server was started in.
_COMMAND = (sys.executable, "-P", "-m", "turnwire.retrieval.documents.sandbox")


async def parse_in_sandbox(name: str, content: bytes, timeout: float) -> ParsedDocument:
    """Parse a file in a separate process. Raise UnreadableDocumentError, also for a file that exceeds a limit."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        PurePath(name).suffix,
        str(int(timeout) + 1),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate(content)
    except TimeoutError:
        raise UnreadableDocumentError(f"it took longer than {timeout:g} seconds to read") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise UnreadableDocumentError("it cannot be read: the reader ran out of memory or time")
    parsed = msgspec.msgpack.decode(output, type=ParsedDocument | str)
    if isinstance(parsed, str):
        raise UnreadableDocumentError(parsed)
    return parsed


def _main(suffix: str, seconds: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    except ImportError:
        pass  # Windows has no such limits; the timeout of the parent process still holds.
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
    _main(sys.argv[1], int(sys.argv[2]))
