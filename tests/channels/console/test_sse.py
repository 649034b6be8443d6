"""Reading server-sent events, wherever the network cuts them."""

from collections.abc import AsyncIterator

import pytest

from turnwire.channels.console.hosts import Frame, frames

STREAM = (
    b": stream open\n\n"
    b'id: 1.1\ndata: {"a":1}\n\n'
    b": hb\n\n"
    b'retry: 100\ndata: {"type":"reconnect"}\n\n'
    b"id: 2.1\r\ndata: two\r\ndata: lines\r\n\r\n"
    b"id: 3.1\ndata: cut off"
)


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
async def test_frames_are_the_same_wherever_they_are_cut(size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for place in range(0, len(STREAM), size):
            yield STREAM[place : place + size]

    assert [frame async for frame in frames(chunks())] == [
        Frame(b'{"a":1}', "1.1"),
        Frame(b'{"type":"reconnect"}'),
        Frame(b"two\nlines", "2.1"),
    ]
