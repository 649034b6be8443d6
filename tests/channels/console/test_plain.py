"""Plain text: the answer as it was written, and all that is about it elsewhere."""

import io
import json

from turnwire.channels.console.view import JsonView, PlainView


def test_the_answer_is_what_the_agent_wrote_to_the_letter() -> None:
    answer, about = io.StringIO(), io.StringIO()
    view = PlainView(answer, about)
    view.begin("1", "search")
    view.end("1", "search", succeeded=True, ms=100)
    for piece in ("# Title\n", "\n", "* one\n* two  ", "\n\n", "x" * 300):
        view.write(piece)
    view.close()
    assert answer.getvalue() == "# Title\n\n* one\n* two  \n\n" + "x" * 300 + "\n"
    assert about.getvalue() == "✓ search 0.1s\n"


def test_a_line_end_is_added_only_where_there_is_none() -> None:
    answer = io.StringIO()
    view = PlainView(answer, io.StringIO())
    view.write("Done.\n")
    view.close()
    view.close()
    assert answer.getvalue() == "Done.\n"
    empty = io.StringIO()
    PlainView(empty, io.StringIO()).close()
    assert empty.getvalue() == ""


def test_on_one_terminal_a_step_begins_a_line_of_its_own() -> None:
    both = io.StringIO()
    view = PlainView(both, both, share_a_terminal=True)
    view.write("Let me look.")
    view.line("searching")
    view.write("Found.")
    view.close()
    assert both.getvalue() == "Let me look.\n· searching\nFound.\n"


def test_json_is_the_events_alone() -> None:
    answer, about = io.StringIO(), io.StringIO()
    view = JsonView(answer, about)
    view.hear(b'{"type":"token","content":"x"}')
    view.write("x")
    view.line("quiet")
    view.line("wrong", "bad")
    view.close()
    assert [json.loads(line) for line in answer.getvalue().splitlines()] == [{"type": "token", "content": "x"}]
    assert about.getvalue() == "✗ wrong\n"
