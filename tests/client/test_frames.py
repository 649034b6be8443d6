"""Tests of the parsing of server-sent events, and of a reader's position over control frames and restarts."""

import json
from collections.abc import AsyncIterator

import pytest

from turnwire.client import ClientError, Gap, ReceivedEvent, Reset
from turnwire.client.frames import FrameReader, SseFrame, sse_frames
from turnwire.core.log.events import RestartEvent, TokenEvent

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


def token(position: int, text: str, epoch: int = 1) -> SseFrame:
    return SseFrame(json.dumps({"type": "token", "content": text}).encode(), f"{position}.{epoch}")


def control(kind: str, **fields: object) -> SseFrame:
    return SseFrame(json.dumps({"type": kind, **fields}).encode())


def test_events_that_were_read_are_skipped_until_a_reset() -> None:
    reader = FrameReader("2.1")
    assert reader.read(token(2, "old")) is None
    assert isinstance(reader.read(token(3, "new ")), ReceivedEvent)
    assert reader.read(token(3, "new ")) is None
    assert (reader.position, reader.last_event_id, reader.text) == (3, "3.1", "new ")
    assert reader.read(control("reset")) == Reset()
    assert (reader.position, reader.last_event_id, reader.text) == (0, None, "")
    assert reader.read(token(1, "again", epoch=2)) == ReceivedEvent(
        TokenEvent("again"), b'{"type": "token", "content": "again"}', "1.2"
    )


@pytest.mark.parametrize(
    "frame",
    [
        SseFrame(b"not JSON"),
        SseFrame(b"[1]"),
        SseFrame(b'{"type": "gap", "first_kept": "x"}'),
        SseFrame(b"not JSON", "1.1"),
        SseFrame(b"{}", "first"),
    ],
)
def test_frame_that_is_not_of_a_turn_is_an_error_of_the_client(frame: SseFrame) -> None:
    with pytest.raises(ClientError, match="not of a turn") as raised:
        FrameReader().read(frame)
    assert raised.value.code == "not_turnwire"


async def test_stream_cut_after_any_byte_and_resumed_has_each_event_once() -> None:
    events = [b'id: %d.1\ndata: {"type":"token","content":"%d"}\n\n' % (number, number) for number in range(1, 13)]
    stream = b"".join(events)

    async def read(reader: FrameReader, chunk: bytes) -> list[object]:
        async def chunks() -> AsyncIterator[bytes]:
            yield chunk

        return [reader.read(frame) async for frame in sse_frames(chunks())]

    whole = await read(FrameReader(), stream)
    for cut in range(len(stream) + 1):
        reader = FrameReader()
        received = await read(reader, stream[:cut])
        received += await read(reader, b"".join(events[reader.position :]))
        assert received == whole, f"cut after {cut} bytes"
    assert len(whole) == len(events)


def test_restart_removes_void_text_only() -> None:
    reader = FrameReader()
    for position, text in ((3, "One "), (4, "two "), (5, "thre")):
        reader.read(token(position, text))
    restart = SseFrame(b'{"type":"restart","from_position":4,"reason":"worker_lost"}', "6.2")
    assert reader.read(restart) == ReceivedEvent(RestartEvent(4, "worker_lost"), restart.data, "6.2")
    reader.read(token(7, "three", epoch=2))
    assert reader.text == "One two three"


def test_gap_gives_the_state_once_and_moves_the_reader() -> None:
    reader = FrameReader()
    reader.read(token(1, "lost"))
    frame = control("gap", after=1, first_kept=9, state={"turn_id": "t1", "text": "All before ", "position": 8})
    gap = reader.read(frame)
    assert isinstance(gap, Gap)
    assert (gap.after, gap.first_kept, gap.state.text) == (1, 9, "All before ")
    assert reader.read(frame) is None
    assert (reader.position, reader.last_event_id) == (8, "8")
    reader.read(token(9, "and after"))
    assert reader.text == "All before and after"


def test_gap_with_the_state_of_a_newer_server_keeps_the_text() -> None:
    gap = FrameReader().read(control("gap", first_kept=3, state={"text": "Hi", "outcome": "teleported"}))
    assert isinstance(gap, Gap)
    assert gap.state.text == "Hi"


def test_requested_reconnect_has_the_time_to_wait() -> None:
    reader = FrameReader()
    assert reader.read(control("reconnect", retry_ms=250)) is None
    assert reader.retry_seconds == 0.25
    assert reader.read(control("telepathy")) is None
