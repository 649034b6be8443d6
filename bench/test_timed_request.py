"""Tests of the times at which parts of a response arrived."""

import pytest

from bench.processes import BenchError
from bench.timed_request import mark_times

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'c\r\n{"event":1}\n\r\n'
WORD = b"4\r\n\x1dYes\r\n"
END = b"0\r\n\r\n"
MARKS = [b'{"event":', b"\x1d"]


def test_mark_arrives_with_the_read_of_its_last_byte() -> None:
    answer = HEAD + EVENT + WORD + END
    event = answer.index(MARKS[0]) + len(MARKS[0])
    word = answer.index(MARKS[1]) + 1
    for cut in range(1, len(answer)):
        reads = [(1.0, answer[:cut]), (2.0, answer[cut:])]
        assert mark_times(reads, MARKS) == [1.0 if cut >= event else 2.0, 1.0 if cut >= word else 2.0]


def test_mark_in_the_head_is_ignored() -> None:
    head = b'HTTP/1.1 200 OK\r\nx: {"event":\r\n\r\n'
    assert mark_times([(1.0, head), (2.0, b'{"event":1}')], MARKS[:1]) == [2.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\n", "answered"),
        (HEAD + EVENT + WORD, "last chunk"),
        (HEAD + EVENT + END, "is not in"),
    ],
)
def test_incomplete_response_is_refused(answer: bytes, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        mark_times([(1.0, answer)], MARKS)
