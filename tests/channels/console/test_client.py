"""Tests of the HTTP client: parsing of server-sent events, whatever the chunks."""

from collections.abc import AsyncIterator

import pytest

from turnwire.channels.console.client import SseFrame, sse_frames

STREAM = (
    b": stream open\n\n"
    b'id: 1.1\ndata: {"a":1}\n\n'
    b": hb\n\n"
    b'retry: 100\ndata: {"type":"reconnect"}\n\n'
    b"id: 2.1\r\ndata: two\r\ndata: lines\r\n\r\n"
    b"id: 3.1\ndata: cut off"
)


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
async def test_sse_frames_do_not_depend_on_chunk_size(size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(STREAM), size):
            yield STREAM[start : start + size]

    assert [frame async for frame in sse_frames(chunks())] == [
        SseFrame(b'{"a":1}', "1.1"),
        SseFrame(b'{"type":"reconnect"}'),
        SseFrame(b"two\nlines", "2.1"),
    ]
