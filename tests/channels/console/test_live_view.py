"""Tests of LiveView in terminals of several sizes: every line once, in order, with nothing left behind."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from tests.channels.console.emulator import SIZES, Terminal, printed
from tests.channels.console.test_markdown import markdown
from tests.examples import examples
from turnwire.channels.console.view import Source, render_answer

ANSWER = """# What was found

A paragraph with **bold words**, `code`, 世界 and é, long enough that it is broken in a narrow terminal and perhaps not.

{items}

```python
def first(things):
    return things[0]
```

| name | what it is |
| --- | --- |
| moss | a plant that is older than trees |

> Quoted.

<details>Tags are text.</details>

The end.
""".format(items="\n".join(f"- item {number}" for number in range(60)))


def chunks(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.rotated("size")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("length", [25, 300, 10_000])
def test_transcript_has_every_line_of_the_answer_once(size: tuple[int, int], length: int) -> None:
    terminal = Terminal(*size)
    for piece in chunks(ANSWER, length):
        terminal.view.write(piece)
        terminal.wait(0.1)
        assert len(terminal.shown) <= size[1]
    terminal.view.close()
    assert terminal.transcript == printed(render_answer(ANSWER), size[0])
    for number in range(60):
        assert sum(line.strip() == f"• item {number}" for line in terminal.transcript) == 1


@settings(max_examples=examples(15))
@given(markdown, st.sampled_from(SIZES), st.data())
def test_transcript_does_not_depend_on_the_pieces(text: str, size: tuple[int, int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends = [0, *cuts, len(text)]
    terminal = Terminal(*size)
    for start, end in itertools.pairwise(ends):
        terminal.view.write(text[start:end])
        terminal.wait(0.3)
    terminal.view.close()
    assert terminal.transcript == printed(render_answer(text), size[0])


def test_live_lines_never_reach_the_top_of_the_screen() -> None:
    terminal = Terminal(80, 24)
    terminal.view.write("```\n")
    for number in range(200):
        terminal.view.write(f"line {number}\n")
        terminal.wait(0.1)
        assert terminal.emulator.scrolled == []
        assert len(terminal.shown) <= 20
    assert terminal.shown[-1].strip() == "line 199"
    terminal.view.close()
    assert [line.strip() for line in terminal.transcript] == [f"line {number}" for number in range(200)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_step_is_one_line_while_running_and_after_its_end(size: tuple[int, int]) -> None:
    terminal = Terminal(*size)
    terminal.view.begin("1", "search_notes(query='moss')")
    terminal.wait(0.1)
    assert re.fullmatch(r". search_notes\(query='moss'\)", terminal.shown[-1])
    terminal.view.progress("1", "50% half of them")
    terminal.wait(3)
    (line,) = terminal.shown
    assert "moss') 3s · 50%" in line
    assert line.endswith(("half of them", "…"))
    terminal.view.end("1", "search_notes", succeeded=True, ms=400)
    terminal.view.begin("2", "read")
    terminal.wait(0.5)
    terminal.view.end("2", "read: no such note", succeeded=False, depth=1)
    terminal.view.write("Well.")
    terminal.view.close()
    assert terminal.transcript == ["✓ search_notes 0.4s", "  ✗ read: no such note 0.5s", "", "Well."]


@pytest.mark.parametrize("size", [(30, 2), (12, 3), (30, 4), (5, 5)], ids=str)
def test_tiny_terminal_shows_every_line_once(size: tuple[int, int]) -> None:
    terminal = Terminal(*size)
    terminal.view.write("First\n\nSecond\n\n- a\n- b\n- c\n- d")
    terminal.view.type("next")
    for _ in range(3):
        terminal.wait(1)
    terminal.view.begin("1", "dig")
    terminal.wait(1)
    terminal.view.end("1", "dig", succeeded=True, ms=100)
    terminal.view.close()
    words = "".join(terminal.transcript)
    assert [words.count(word) for word in ("First", "• a", "• d", "✓")] == [1, 1, 1, 1]


def test_text_before_a_step_is_written_above_it() -> None:
    terminal = Terminal()
    terminal.view.write("Let me look.")
    terminal.wait(0.1)
    terminal.view.begin("1", "search")
    terminal.wait(0.1)
    terminal.view.end("1", "search", succeeded=True, ms=1000)
    terminal.view.write("Found.")
    terminal.view.close()
    assert terminal.transcript == ["Let me look.", "", "✓ search 1.0s", "", "Found."]


def test_step_does_not_split_a_code_block() -> None:
    terminal = Terminal()
    terminal.view.write("```\n# one\n")
    terminal.view.line("a status")
    terminal.view.write("# two\n```\n")
    terminal.view.close()
    assert terminal.transcript == ["· a status", "", "  # one", "  # two"]


def test_several_steps_show_the_newest_and_count_the_others() -> None:
    terminal = Terminal()
    for key in ("a", "b", "c"):
        terminal.view.begin(key, f"tool {key}")
    terminal.wait(0.1)
    assert terminal.shown[-1].endswith("tool c (+2)")
    terminal.view.end("c", "tool c", succeeded=True, ms=1)
    terminal.wait(0.1)
    assert terminal.shown[-1].endswith("tool b (+1)")


def test_unfinished_step_is_shown_at_the_end() -> None:
    terminal = Terminal()
    terminal.view.begin("1", "dig")
    terminal.wait(1.5)
    terminal.view.close()
    assert terminal.transcript == ["■ dig 1.5s, not finished"]


def test_silence_shows_a_spinner() -> None:
    terminal = Terminal()
    terminal.view.write("One moment")
    terminal.wait(0.1)
    assert terminal.shown == ["One moment"]
    terminal.wait(5)
    assert terminal.shown[-1].endswith("working 5s")
    terminal.view.write(".")
    terminal.wait(0.1)
    assert terminal.shown == ["One moment."]


def test_notice_and_question_precede_steps_and_typed_text_is_last() -> None:
    terminal = Terminal(40, 15)
    terminal.view.begin("1", "dig")
    terminal.view.notice("stopping")
    terminal.view.type("what I type is longer than the terminal is wide: its end is shown")
    terminal.wait(0.1)
    assert terminal.shown[0].endswith("stopping")
    assert terminal.shown[1].startswith("› ")
    assert terminal.shown[1].endswith("its end is shown")
    terminal.view.ask("Allow dig? [y/N] ")
    terminal.wait(0.1)
    assert terminal.shown[0] == "Allow dig? [y/N]"


def test_sources_are_numbered_at_the_end() -> None:
    terminal = Terminal(40, 15)
    terminal.view.write("Moss is old [1].")
    terminal.view.cite([Source(1, "Plants", "Moss came before trees and before ferns.", "https://plants.example")])
    terminal.view.close()
    assert terminal.transcript[:3] == ["Moss is old [1].", "", "[1] Plants “Moss came before trees"]
    assert all(line.startswith("    ") for line in terminal.transcript[3:])


def test_paint_without_changes_writes_nothing() -> None:
    terminal = Terminal()
    terminal.view.write("One moment")
    terminal.wait(0.1)
    written = len(terminal.emulator.written)
    for _ in range(5):
        terminal.wait(0.01)
    assert len(terminal.emulator.written) == written


def test_close_shows_the_cursor_again() -> None:
    terminal = Terminal()
    terminal.view.begin("1", "dig")
    terminal.wait(0.1)
    assert terminal.emulator.screen.cursor.hidden
    terminal.view.close()
    assert not terminal.emulator.screen.cursor.hidden
    assert terminal.emulator.screen.cursor.x == 0


def test_resized_terminal_keeps_the_text() -> None:
    terminal = Terminal(80, 24)
    terminal.view.write("First.\n\nSecond is not finished")
    terminal.wait(0.1)
    for width, height in ((120, 40), (60, 20), (80, 24)):
        terminal.console.size = (width, height)  # type: ignore[assignment]
        terminal.emulator.screen.resize(height, width)
        terminal.wait(0.1)
    terminal.view.write(" yet.\n")
    terminal.view.close()
    assert terminal.transcript == ["First.", "", "Second is not finished yet."]


def test_printed_lines_do_not_disturb_an_answer() -> None:
    terminal = Terminal()
    terminal.view.write("An answer that is")
    terminal.wait(0.1)
    terminal.screen.print(Text("! a warning"))
    terminal.wait(0.1)
    terminal.view.write(" complete.")
    terminal.view.close()
    assert terminal.transcript == ["! a warning", "An answer that is complete."]


def test_no_color_console_gets_no_colours() -> None:
    terminal = Terminal()
    terminal.console.no_color = True
    terminal.view.line("failed", "bad")
    terminal.view.write("**bold** `code`")
    terminal.view.close()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", terminal.emulator.written)
