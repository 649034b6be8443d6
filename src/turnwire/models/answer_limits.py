"""Limits on what a model server may send: without them, an answer that never ends a line would fill the memory."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

MAX_LINE_BYTES = 8 * 1024 * 1024
"""The last event of some servers repeats the whole answer."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class AnswerTooLongError(ValueError):
    """Raised while an answer is read."""


def answer_limiter(client: type) -> Callable[[Any], Awaitable[None]]:
    """Return a response hook for HTTP clients of this class, which limits the bodies of all responses.

    The class tells which HTTP library it is of: that of the `openai` package has changed its name.
    """
    library = next(base.__module__.partition(".")[0] for base in client.__mro__ if base.__name__ == "AsyncClient")
    stream_class: Any = sys.modules[library].AsyncByteStream

    class LimitedStream(stream_class):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _limited(self._stream)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: Any) -> None:
        response.stream = LimitedStream(response.stream)

    return limit


async def _limited(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    total = line = 0
    async for chunk in chunks:
        total += len(chunk)
        end = chunk.rfind(b"\n")
        line = line + len(chunk) if end < 0 else len(chunk) - end - 1
        if line > MAX_LINE_BYTES:
            raise AnswerTooLongError(f"a line of the answer is over {MAX_LINE_BYTES:,} bytes")
        if total > MAX_ANSWER_BYTES:
            raise AnswerTooLongError(f"the answer is over {MAX_ANSWER_BYTES:,} bytes")
        yield chunk
