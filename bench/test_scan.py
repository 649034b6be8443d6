"""Tests of the load client's scanner."""

import asyncio
import json
import random
import time

import pytest

from bench.job import Job
from bench.scan import AgeScan, Scan, Tally, shared_buffer
from bench.sources import STAMP_MODULUS

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
JOB = Job(port=0, path="/", marker='"type":"token"', streams=1, tokens=0)


class Sink:
    def write(self, request: bytes) -> None:
        pass


def chunk(content: str) -> bytes:
    text = json.dumps({"type": "token", "content": content}, separators=(",", ":"))
    frame = f"id: 3.1\ndata: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def read(kind: type[Scan], response: bytes, cuts: list[int], tokens: int) -> tuple[Scan, Tally]:
    """Feed a response in pieces, as a transport would."""

    async def feed() -> tuple[Scan, Tally]:
        job, tally = Job(**{**vars(JOB), "tokens": tokens}), Tally()
        scan = kind(job, tally, shared_buffer(job))
        scan.connection_made(Sink())  # type: ignore[arg-type]
        for start, end in zip([0, *cuts], [*cuts, len(response)], strict=True):
            piece = response[start:end]
            scan.get_buffer(-1)[: len(piece)] = piece
            scan.buffer_updated(len(piece))
        scan.connection_lost(None)
        return scan, tally

    return asyncio.run(feed())


@pytest.mark.parametrize("kind", [Scan, AgeScan])
def test_token_is_counted_once_wherever_reads_end(kind: type[Scan]) -> None:
    stamp = f"{time.monotonic_ns() // 1000 % STAMP_MODULUS:012}"
    other = b'data: {"type":"response","content":"%b"}\n\n' % (stamp.encode() * 3)
    response = HEAD + chunk(stamp) * 3 + other + b"\r\n0\r\n\r\n"
    for cut in range(1, len(response)):
        scan, tally = read(kind, response, [cut], tokens=3)
        assert (scan.events, tally.bad) == (3, [])
    for seed in range(200):
        cuts = sorted(random.Random(seed).sample(range(1, len(response)), 40))
        scan, tally = read(kind, response, cuts, tokens=3)
        assert (scan.events, tally.bad) == (3, [])
    every = list(range(1, len(response)))
    assert read(kind, response, every, tokens=3)[0].events == 3


def test_missing_token_is_reported() -> None:
    _, tally = read(Scan, HEAD + chunk("a") + b"0\r\n\r\n", [], tokens=2)
    assert tally.bad == ["delivered 1 tokens of 2"]


def test_incomplete_stream_is_reported() -> None:
    _, tally = read(Scan, HEAD + chunk("a"), [], tokens=1)
    assert tally.bad == ["ended before its last chunk"]


def test_error_status_is_reported() -> None:
    _, tally = read(Scan, b"HTTP/1.1 503 Busy\r\n\r\n", [], tokens=0)
    assert tally.bad[0].startswith("answered")


def test_stamp_gives_the_age_of_its_token() -> None:
    made = time.monotonic_ns() // 1000 - 5000
    response = HEAD + chunk(f"{made % STAMP_MODULUS:012}") + b"0\r\n\r\n"
    _, tally = read(AgeScan, response, [], tokens=1)
    assert 5 <= tally.age_ms[0] < 1000
