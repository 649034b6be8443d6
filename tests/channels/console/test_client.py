"""Tests of the HTTP client: its error messages, and the parsing of server-sent events."""

from collections.abc import AsyncIterator

import httpx
import pytest

from turnwire.channels.console.client import HostError, ServerAddress, ServerClient, SseFrame, TurnCursor, sse_frames

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


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b'{"error": {"message": "no turn has this id"}}', "no turn has this id"),
        (401, b'{"error": {"message": "a key is needed"}}', "a key is needed; pass a key with --key"),
        (502, b"<html>", "the server answered 502 Bad Gateway"),
        (200, b"<html>", "did not answer with JSON; check that it is a Turnwire server"),
    ],
)
async def test_failed_call_raises_host_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, message: str
) -> None:
    async def request(*_: object, **__: object) -> httpx.Response:
        return httpx.Response(status, content=body)

    monkeypatch.setattr(httpx.AsyncClient, "request", request)
    async with ServerClient(ServerAddress("http://localhost:1")) as client:
        with pytest.raises(HostError, match=message):
            await client.call("GET", "/v1/sessions")


def test_invalid_url_raises_host_error() -> None:
    with pytest.raises(HostError, match="is not a valid URL"):
        ServerClient(ServerAddress("http://[no"))


def test_cursor_skips_events_that_were_read_until_it_is_rewound() -> None:
    cursor = TurnCursor({"message": "Hello"})
    assert cursor.advance("3.1")
    assert not cursor.advance("3.1")
    assert not cursor.advance("2.1")
    assert (cursor.position, cursor.last_event_id) == (3, "3.1")
    cursor.rewind()
    assert cursor.advance("1.2")
