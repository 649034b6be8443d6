"""Which blocks of a Markdown text are finished: a matter of the text, not of the pieces it comes in."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.channels.console.markdown import Blocks

PIECES = (
    "word", "two words", "#", "# ", "## Title", "\n", "\n\n", "\n\n\n", "- ", "- item", "1. one", "  ", "    ", "> ",
    "```", "```py", "~~~", "`", "**", "[a]: /b", "[a]:", "[a]", "| a | b |", "|---|---|", "a | b", "--- | ---", "===",
    "---", "***", "<div>", "</div>", "<!--", "\r\n", "\r", "\t", "世界", "* x", "+ y", "10) z", "&amp;", "e\u0301",
)  # fmt: skip
markdown = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def cut(text: str, pieces: list[str]) -> list[str]:
    blocks, found = Blocks(), list[str]()
    for piece in pieces:
        blocks.add(piece)
        found += blocks.finished()
    return found + blocks.finish()


@given(markdown, st.data())
def test_the_blocks_are_the_same_whatever_the_pieces(text: str, data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = [0, *places, len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(ends)]
    assert cut(text, pieces) == cut(text, [text]) == cut(text, list(text))


@given(markdown)
def test_nothing_is_said_twice_and_nothing_is_made_up(text: str) -> None:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    place = 0
    for block in cut(text, [text]):
        for line in block.split("\n"):
            place = lines.index(line, place) + 1


def test_a_block_is_finished_when_the_next_has_begun() -> None:
    blocks = Blocks()
    blocks.add("One\ntwo\n")
    assert blocks.finished() == []
    blocks.add("\nThree")
    assert blocks.finished() == [], "the line may still become something else"
    blocks.add("\n")
    assert blocks.finished() == ["One\ntwo"]
    assert blocks.rest == "Three\n"
    assert blocks.finish() == ["Three"]
    assert blocks.rest == ""


def test_a_line_that_is_not_complete_finishes_nothing() -> None:
    blocks = Blocks()
    blocks.add("See\n#")
    assert blocks.finished() == []
    blocks.add("1 of the list")
    assert blocks.finish() == ["See\n#1 of the list"]


@pytest.mark.parametrize(
    ("text", "is_in_code"),
    [
        ("```py\nx = 1", True),
        ("```", True),
        ("Text\n\n```py\nx\n```", False),
        ("Text\n\n```py\nx\n```\n", False),
        ("````\n```\n", True),
        ("~~~\nx\n~~~", False),
        ("Text", False),
        ("", False),
    ],
)
def test_it_knows_when_code_is_still_open(text: str, is_in_code: bool) -> None:
    blocks = Blocks()
    blocks.add(text)
    assert blocks.is_in_code is is_in_code
