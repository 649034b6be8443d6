"""The reader of Markdown: the text and its blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.retrieval.paper import block_texts
from turnwire.retrieval.documents.parser import parse_markdown


def test_markdown_text_is_kept_and_split_at_its_blocks() -> None:
    text = "# Tea\n\nIt is *hot*.\nVery.\n\n- one\n  more\n- two\n\n---\n\n> quoted\n"
    parsed = parse_markdown(text)
    assert parsed.text == text
    assert block_texts(parsed) == ["# Tea", "It is *hot*.\nVery.", "- one\n  more\n- two", "---", "> quoted"]
    assert [block.level for block in parsed.blocks] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("# Tea", "Tea"),
        ("### The `brew` of **tea** ###", "The brew of tea"),
        ("## [Leaves](https://example.org/a) and water", "Leaves and water"),
        ("# Tea {#tea-anchor}", "Tea"),
        ("# C# and F#", "C# and F#"),
        ("Tea\n===", "Tea"),
        ("Tea\n---", "Tea"),
        ("#", ""),
    ],
)
def test_heading_has_no_markup(line: str, heading: str) -> None:
    (block,) = parse_markdown(line).blocks
    assert block.level
    assert block.heading == heading


def test_heading_in_code_is_ignored() -> None:
    parsed = parse_markdown("```sh\n# a comment\n```\n\n    # more code\n\n#no heading\n")
    assert [block.level for block in parsed.blocks] == [0, 0, 0]
    assert [block.whole for block in parsed.blocks] == [True, True, False]


def test_code_and_html_are_whole_and_tables_have_rows() -> None:
    parsed = parse_markdown("~~~\ncode\n~~~\n\n<div>\nhtml\n</div>\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\nText")
    assert [(block.whole, block.rows) for block in parsed.blocks] == [
        (True, False),
        (True, False),
        (False, True),
        (False, False),
    ]


def test_nested_blocks_belong_to_their_block() -> None:
    text = "- one\n\n  ```\n  code\n  ```\n\n  # inner\n- two\n\n> # quoted\n> text\n"
    parsed = parse_markdown(text)
    assert len(parsed.blocks) == 2
    assert not any(block.level or block.whole for block in parsed.blocks)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: Green tea\nlayout: x\n---\n# Another\n", "Green tea"),
        ("---\ntitle: 'Green tea'\n...\ntext", "Green tea"),
        ('---\nlayout: x\ntitle: "Green tea"\n---\ntext', "Green tea"),
        ("---\nlayout: x\n---\n## Small\n\n# Large\n\n# Second", "Large"),
        ("Only text", None),
        ("## Small", None),
    ],
)
def test_title_comes_from_front_matter_or_first_h1(text: str, title: str | None) -> None:
    assert parse_markdown(text).title == title


def test_blocks_after_front_matter_have_the_right_start() -> None:
    text = "---\ntitle: Tea\n---\n\n# Tea\n\nHot.\n"
    parsed = parse_markdown(text)
    assert parsed.text == text
    assert block_texts(parsed) == ["# Tea", "Hot."]


@given(st.text(alphabet=st.sampled_from("# \n`~-*>|ab[]()<1.\t="), max_size=80))
def test_blocks_start_in_order_at_line_starts(text: str) -> None:
    parsed = parse_markdown(text)
    starts = [block.start for block in parsed.blocks]
    assert starts == sorted(set(starts))
    for start in starts:
        assert start == 0 or text[start - 1] == "\n"
