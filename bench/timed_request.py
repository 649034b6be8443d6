"""One request on its own connection, with the times at which parts of the response arrived."""

import socket
import time
from collections.abc import Sequence

from bench.processes import BenchError

READ_SIZE = 64 * 1024
PATIENCE = 30
LAST_CHUNK = b"\r\n0\r\n\r\n"

Read = tuple[float, bytes]


def ask(port: int, request: bytes, marks: Sequence[bytes]) -> list[float]:
    """Return the milliseconds from the request to each mark. Raise BenchError for an incomplete response."""
    _, reads = exchange(port, request)
    return mark_times(reads, marks)


def exchange(port: int, request: bytes) -> tuple[float, list[Read]]:
    """Return the time of the request, in seconds, and the parts of the response with the milliseconds since then."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        reads: list[Read] = []
        sent_at = time.perf_counter()
        connection.sendall(request)
        while piece := connection.recv(READ_SIZE):
            reads.append(((time.perf_counter() - sent_at) * 1000, piece))
    return sent_at, reads


def mark_times(reads: Sequence[Read], marks: Sequence[bytes]) -> list[float]:
    """Return when the last byte of each mark arrived. Marks are searched in order, after the head."""
    answer = b"".join(piece for _, piece in reads)
    head, _, _ = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise BenchError(f"answered {answer[:400]!r}")
    if b"chunked" in head and not answer.endswith(LAST_CHUNK):
        raise BenchError("the response ended before its last chunk")
    times: list[float] = []
    end = len(head)
    for mark in marks:
        start = answer.find(mark, end)
        if start < 0:
            raise BenchError(f"the mark {mark!r} is not in {answer[:400]!r}")
        end = start + len(mark)
        times.append(_time_of(reads, end))
    return times


def _time_of(reads: Sequence[Read], count: int) -> float:
    """Return when this many bytes had arrived."""
    for at, piece in reads:
        count -= len(piece)
        if count <= 0:
            return at
    raise ValueError("there are fewer bytes")
