"""One request at a time on a connection of its own, and when the parts of its answer came."""

import socket
import time
from collections.abc import Sequence

from bench.running import BenchError

READ_SIZE = 64 * 1024
PATIENCE = 30
LAST_CHUNK = b"\r\n0\r\n\r\n"

Read = tuple[float, bytes]


def ask(port: int, request: bytes, marks: Sequence[bytes]) -> list[float]:
    """Milliseconds from the request to each of the marks. Raises BenchError for an answer that is not whole."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        reads: list[Read] = []
        asked = time.perf_counter()
        connection.sendall(request)
        while piece := connection.recv(READ_SIZE):
            reads.append(((time.perf_counter() - asked) * 1000, piece))
    return seen(reads, marks)


def seen(reads: Sequence[Read], marks: Sequence[bytes]) -> list[float]:
    """When each of the marks had come to its end. They come in this order, and not in the head."""
    answer = b"".join(piece for _, piece in reads)
    head, _, _ = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise BenchError(f"answered {answer[:400]!r}")
    if b"chunked" in head and not answer.endswith(LAST_CHUNK):
        raise BenchError("an answer broke off before its last chunk")
    times: list[float] = []
    end = len(head)
    for mark in marks:
        start = answer.find(mark, end)
        if start < 0:
            raise BenchError(f"there was no {mark!r} in {answer[:400]!r}")
        end = start + len(mark)
        times.append(_time_of(reads, end))
    return times


def _time_of(reads: Sequence[Read], count: int) -> float:
    """When so many bytes had come."""
    for at, piece in reads:
        count -= len(piece)
        if count <= 0:
            return at
    raise ValueError("so many bytes never came")
