"""A scanner that counts the tokens in a response and checks that it is complete.

Parsing HTTP or SSE would cost more than the servers under test: it searches the bytes for the
marker of a token, also across two reads.
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
    """The results of all streams of a job."""

    streams: int = 0
    events: int = 0
    received_bytes: int = 0
    first_ms: list[float] = field(default_factory=list[float])
    age_ms: list[float] = field(default_factory=list[float])
    bad: list[str] = field(default_factory=list[str])


class Scan(asyncio.BufferedProtocol):
    """One response, read into a buffer that all of them share.

    The end of the last read is put before the next. It is one byte shorter than the marker,
    so a marker across two reads is counted, and none twice.
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
        self._overlap = len(self._marker) - 1
        self._tail = bytes(self._overlap)
        self._shared = shared
        self._view = memoryview(shared)[self._overlap :]
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._sent_at = time.perf_counter()
        transport.write(self.job.request())  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        overlap, shared = self._overlap, self._shared
        if not self.received:
            self.opened.set_result(None)
        if len(self._head) < HEAD_BYTES:
            self._head += bytes(self._view[: min(nbytes, HEAD_BYTES - len(self._head))])
        self.received += nbytes
        shared[:overlap] = self._tail
        count = self.scan(overlap + nbytes)
        if count and not self.events:
            self.tally.first_ms.append((time.perf_counter() - self._sent_at) * 1000)
        self.events += count
        self._tail = shared[nbytes : nbytes + overlap]

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
            return "ended before its last chunk"
        return None


class AgeScan(Scan):
    """A slower scanner that also reads the stamps of paced streams."""

    def __init__(self, job: Job, tally: Tally, shared: bytearray) -> None:
        super().__init__(job, tally, shared)
        self._pattern = re.compile(re.escape(self._marker) + rb', ?"content": ?"(\d{%d})"' % STAMP_DIGITS)
        self._rest = b""

    def scan(self, end: int) -> int:
        now = time.monotonic_ns() // 1000
        text = self._rest + bytes(self._shared[self._overlap : end])
        count = last = 0
        for match in self._pattern.finditer(text):
            age = (now - int(match[1])) % STAMP_MODULUS
            self.tally.age_ms.append(age / 1000)
            count, last = count + 1, match.end()
        self._rest = text[last:][-100:]
        return count


def shared_buffer(job: Job) -> bytearray:
    return bytearray(len(job.marker.encode()) - 1 + READ_SIZE)
