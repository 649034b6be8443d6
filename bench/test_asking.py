"""When the parts of an answer came, as the client tells it."""

import pytest

from bench.asking import seen
from bench.running import BenchError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'c\r\n{"event":1}\n\r\n'
WORD = b"4\r\n\x1dYes\r\n"
END = b"0\r\n\r\n"
MARKS = [b'{"event":', b"\x1d"]


def test_a_mark_has_come_with_the_read_that_holds_its_last_byte() -> None:
    answer = HEAD + EVENT + WORD + END
    event = answer.index(MARKS[0]) + len(MARKS[0])
    word = answer.index(MARKS[1]) + 1
    for cut in range(1, len(answer)):
        reads = [(1.0, answer[:cut]), (2.0, answer[cut:])]
        assert seen(reads, MARKS) == [1.0 if cut >= event else 2.0, 1.0 if cut >= word else 2.0]


def test_a_mark_in_the_head_is_not_taken_for_the_answer() -> None:
    head = b'HTTP/1.1 200 OK\r\nx: {"event":\r\n\r\n'
    assert seen([(1.0, head), (2.0, b'{"event":1}')], MARKS[:1]) == [2.0]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\n", "answered"),
        (HEAD + EVENT + WORD, "last chunk"),
        (HEAD + EVENT + END, "there was no"),
    ],
)
def test_an_answer_that_is_not_whole_is_told(answer: bytes, told: str) -> None:
    with pytest.raises(BenchError, match=told):
        seen([(1.0, answer)], MARKS)
