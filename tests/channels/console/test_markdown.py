"""Tests of MarkdownBlocks: the finished blocks depend on the text, not on the pieces it arrives in."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.channels.console.markdown import MarkdownBlocks

PIECES = (
    "word", "two words", "#", "# ", "## Title", "\n", "\n\n", "\n\n\n", "- ", "- item", "1. one", "  ", "    ", "> ",
    "```", "```py", "~~~", "`", "**", "[a]: /b", "[a]:", "[a]", "| a | b |", "|---|---|", "a | b", "--- | ---", "===",
    "---", "***", "<div>", "</div>", "<!--", "\r\n", "\r", "\t", "世界", "* x", "+ y", "10) z", "&amp;", "e\u0301",
)  # fmt: skip
markdown = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def split(pieces: list[str]) -> list[str]:
    blocks, finished = MarkdownBlocks(), list[str]()
    for piece in pieces:
        blocks.add(piece)
        finished += blocks.finished()
    return finished + blocks.finish()


@given(markdown, st.data())
def test_blocks_do_not_depend_on_the_pieces(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    ends = [0, *cuts, len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(ends)]
    assert split(pieces) == split([text]) == split(list(text))


@given(markdown)
def test_blocks_have_the_lines_of_the_text_in_order(text: str) -> None:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    position = 0
    for block in split([text]):
        for line in block.split("\n"):
            position = lines.index(line, position) + 1


def test_block_is_finished_when_the_next_begins() -> None:
    blocks = MarkdownBlocks()
    blocks.add("One\ntwo\n")
    assert blocks.finished() == []
    blocks.add("\nThree")
    assert blocks.finished() == [], "the line may still become something else"
    blocks.add("\n")
    assert blocks.finished() == ["One\ntwo"]
    assert blocks.rest == "Three\n"
    assert blocks.finish() == ["Three"]
    assert blocks.rest == ""


def test_incomplete_line_finishes_no_block() -> None:
    blocks = MarkdownBlocks()
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
def test_open_code_fence_is_detected(text: str, is_in_code: bool) -> None:
    blocks = MarkdownBlocks()
    blocks.add(text)
    assert blocks.is_in_code is is_in_code
