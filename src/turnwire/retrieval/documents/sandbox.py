"""Reading a file from a stranger: in a process of its own, with a bound on its time and memory.

A file that is made to hurt its reader can only hurt that process.
"""

import asyncio
import sys
from pathlib import PurePath

import msgspec

from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.document import Parsed

_MOST_MEMORY = 2 * 1024**3
_MOST_CHARACTERS = 50_000_000
# -P: the folder that the server happens to be started in is no place to import from.
_COMMAND = (sys.executable, "-P", "-m", "turnwire.retrieval.documents.sandbox")


async def parse_apart(name: str, content: bytes, timeout: float) -> Parsed:
    """Raises UnreadableDocumentError."""
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
            answer, _ = await process.communicate(content)
    except TimeoutError:
        raise UnreadableDocumentError(f"it took longer than {timeout:g} seconds to read") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise UnreadableDocumentError("it cannot be read: the reader ran out of memory or time")
    parsed = msgspec.msgpack.decode(answer, type=Parsed | str)
    if isinstance(parsed, str):
        raise UnreadableDocumentError(parsed)
    return parsed


def _main(suffix: str, seconds: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    except ImportError:
        pass  # Windows has no such limits; the time-out above still holds.
    from turnwire.retrieval.documents.parser import parse

    try:
        answer: Parsed | str = parse(f"document{suffix}", sys.stdin.buffer.read())
        if len(answer.text) > _MOST_CHARACTERS:
            # The other side keeps it in memory, where there is no bound.
            answer = f"it holds more than {_MOST_CHARACTERS:,} characters of text"
    except UnreadableDocumentError as error:
        answer = str(error)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
