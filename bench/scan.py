"""Counts the tokens in a response and checks that it was whole.

It does not parse HTTP or SSE, which would cost more than the servers it measures: it looks for
the marker of a token in the bytes as they come, also across the border of two reads.
"""

import asyncio
import re
import time
from dataclasses import dataclass, field

from bench.job import Job
from bench.sources import STAMP_DIGITS, STAMP_MODULUS

LAST_CHUNK = b"\r\n0\r\n\r\n"
READ_SIZE = 256 * 1024
HEAD_BYTES = 1024


@dataclass
class Tally:
    """What came of all the streams of a job."""

    streams: int = 0
    events: int = 0
    received_bytes: int = 0
    first_ms: list[float] = field(default_factory=list[float])
    age_ms: list[float] = field(default_factory=list[float])
    bad: list[str] = field(default_factory=list[str])


class Scan(asyncio.BufferedProtocol):
    """One response, read into a buffer that all of them share.

    The end of the last read is put before the next one. It is one byte shorter than the marker,
    so a marker that was cut in two is found and none is counted twice.
    """

    def __init__(self, job: Job, tally: Tally, shared: bytearray) -> None:
        loop = asyncio.get_running_loop()
        self.opened = loop.create_future()
        self.closed = loop.create_future()
        self.events = 0
        self.received = 0
        self.job = job
        self.tally = tally
        self._marker = job.marker.encode()
        self._kept = len(self._marker) - 1
        self._tail = bytes(self._kept)
        self._shared = shared
        self._view = memoryview(shared)[self._kept :]
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._asked = time.perf_counter()
        transport.write(self.job.request())  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        kept, shared = self._kept, self._shared
        if not self.received:
            self.opened.set_result(None)
        if len(self._head) < HEAD_BYTES:
            self._head += bytes(self._view[: min(nbytes, HEAD_BYTES - len(self._head))])
        self.received += nbytes
        shared[:kept] = self._tail
        found = self.scan(kept + nbytes)
        if found and not self.events:
            self.tally.first_ms.append((time.perf_counter() - self._asked) * 1000)
        self.events += found
        self._tail = shared[nbytes : nbytes + kept]

    def scan(self, end: int) -> int:
        return self._shared.count(self._marker, 0, end)

    def connection_lost(self, exc: Exception | None) -> None:
        tally = self.tally
        tally.streams += 1
        tally.events += self.events
        tally.received_bytes += self.received
        if (fault := self.fault()) and not self.job.leave:
            tally.bad.append(fault)
        if not self.opened.done():
            self.opened.set_result(None)
        self.closed.set_result(None)

    def fault(self) -> str | None:
        head, _, _ = self._head.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            return f"answered {self._head[:400]!r}"
        if self.events != self.job.tokens:
            return f"delivered {self.events} tokens of {self.job.tokens}"
        if b"chunked" in head and not self._tail.endswith(LAST_CHUNK):
            return "broke off before its last chunk"
        return None


class AgeScan(Scan):
    """Reads the stamps too. Slower, for paced streams."""

    def __init__(self, job: Job, tally: Tally, shared: bytearray) -> None:
        super().__init__(job, tally, shared)
        self._pattern = re.compile(re.escape(self._marker) + rb', ?"content": ?"(\d{%d})"' % STAMP_DIGITS)
        self._rest = b""

    def scan(self, end: int) -> int:
        now = time.monotonic_ns() // 1000
        text = self._rest + bytes(self._shared[self._kept : end])
        found = last = 0
        for match in self._pattern.finditer(text):
            age = (now - int(match[1])) % STAMP_MODULUS
            self.tally.age_ms.append(age / 1000)
            found, last = found + 1, match.end()
        self._rest = text[last:][-100:]
        return found


def shared_buffer(job: Job) -> bytearray:
    return bytearray(len(job.marker.encode()) - 1 + READ_SIZE)
