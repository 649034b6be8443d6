"""Tests of PlainView and JsonView: the answer to one stream, the rest to another."""

import io
import json

from turnwire.channels.console.view import JsonView, PlainView


def test_plain_answer_is_exactly_the_written_text() -> None:
    answer, details = io.StringIO(), io.StringIO()
    view = PlainView(answer, details)
    view.begin("1", "search")
    view.end("1", "search", succeeded=True, ms=100)
    for piece in ("# Title\n", "\n", "* one\n* two  ", "\n\n", "x" * 300):
        view.write(piece)
    view.close()
    assert answer.getvalue() == "# Title\n\n* one\n* two  \n\n" + "x" * 300 + "\n"
    assert details.getvalue() == "✓ search 0.1s\n"


def test_plain_answer_gets_a_line_end_only_if_it_lacks_one() -> None:
    answer = io.StringIO()
    view = PlainView(answer, io.StringIO())
    view.write("Done.\n")
    view.close()
    view.close()
    assert answer.getvalue() == "Done.\n"
    empty = io.StringIO()
    PlainView(empty, io.StringIO()).close()
    assert empty.getvalue() == ""


def test_plain_step_on_a_shared_terminal_starts_a_new_line() -> None:
    both = io.StringIO()
    view = PlainView(both, both, shares_terminal=True)
    view.write("Let me look.")
    view.line("searching")
    view.write("Found.")
    view.close()
    assert both.getvalue() == "Let me look.\n· searching\nFound.\n"


def test_json_view_prints_events_and_problems_only() -> None:
    answer, details = io.StringIO(), io.StringIO()
    view = JsonView(answer, details)
    view.receive(b'{"type":"token","content":"x"}')
    view.write("x")
    view.line("quiet")
    view.line("wrong", "bad")
    view.close()
    assert [json.loads(line) for line in answer.getvalue().splitlines()] == [{"type": "token", "content": "x"}]
    assert details.getvalue() == "✗ wrong\n"
