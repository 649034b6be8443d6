"""Blocks: the parts of a passage that can be quoted, and the text that is shown of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.retrieval.blocks import MAX_BLOCK, plain_line, split_blocks, widened
from turnwire.retrieval.citations import without_markers

PARAGRAPH = "Tea is hot. It is drunk from cups."


def shown(text: str) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in split_blocks(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PARAGRAPH, [("text", PARAGRAPH)]),
        ("Tea is\nhot.\n\nIt is drunk.", [("text", "Tea is hot."), ("text", "It is drunk.")]),
        ("# Tea\n\nIt is hot.", [("text", "It is hot.")]),
        ("Tea\n===\n\nIt is hot.", [("text", "It is hot.")]),
        ("- Green\n- Black\n  tea", [("list", "- Green\n- Black tea")]),
        ("1. Green\n\n2. Black", [("list", "1. Green\n2. Black")]),
        ("| tea | heat |\n|---|---|\n| green | 80 degrees |", [("table", "green: 80 degrees")]),
        (
            "| tea | heat | time |\n|---|---|---|\n| green | warm | short |",
            [("table", "| tea | heat | time |\n| --- | --- | --- |\n| green | warm | short |")],
        ),
        ("```sh\nbrew tea\n```", [("code", "```sh\nbrew tea\n```")]),
        ("> Tea is hot.", [("text", "Tea is hot.")]),
    ],
    ids=[
        "paragraph",
        "two paragraphs",
        "heading",
        "underlined",
        "list",
        "loose list",
        "table",
        "wide",
        "code",
        "quote",
    ],
)
def test_each_kind_of_block_is_recognised(text: str, expected: list[tuple[str, str]]) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "# Only a heading",
        "How is tea brewed?",
        "- [Tea](tea.md)\n- [Coffee](coffee.md)",
        "[Tea](tea.md) · [Coffee](coffee.md)",
        "| page | for |\n|---|---|\n| [Tea](tea.md) | how to brew it |\n| [Coffee](coffee.md) | how to grind it |",
        "| n | ms | rows |\n|---|---|---|\n| 5 | 561 | 13213 |\n| 7 | 681 | 13213 |",
        "---",
        "",
    ],
    ids=["heading", "question", "contents", "links", "table of contents", "figures", "rule", "nothing"],
)
def test_text_that_answers_nothing_is_no_block(text: str) -> None:
    assert shown(text) == []


def test_each_row_of_a_glossary_is_a_block() -> None:
    glossary = "| word | meaning |\n|---|---|\n| **tea** | leaves in hot water |\n| **mate** | tea of holly |"
    assert shown(glossary) == [("table", "**tea**: leaves in hot water"), ("table", "**mate**: tea of holly")]


def test_tags_are_removed_from_text_and_kept_in_code() -> None:
    text = "Add `<script src=tea.js>` to <b>your</b> page, or ``a `<b>` c``. <!-- draft -->"
    assert shown(text) == [("text", "Add `<script src=tea.js>` to your page, or ``a `<b>` c``.")]


def test_line_that_announces_a_block_is_part_of_it() -> None:
    assert shown("Brew it so:\n\n```sh\nbrew tea\n```") == [("code", "Brew it so:\n\n```sh\nbrew tea\n```")]
    assert shown("Kinds:\n\n- green\n- black") == [("list", "Kinds:\n\n- green\n- black")]


def test_sentence_before_code_is_a_block_alone_too() -> None:
    kinds = [kind for kind, _ in shown(f"{PARAGRAPH}\n\n```sh\nbrew tea\n```")]
    assert kinds == ["text", "code"]


def test_long_paragraph_is_split_between_sentences() -> None:
    sentence = "Tea is brewed with water that has boiled for a while and has then cooled down a little. "
    blocks = split_blocks(sentence * 20)
    assert len(blocks) > 1
    assert all(len(block.text) <= MAX_BLOCK and block.text.endswith(".") for block in blocks)


def test_long_list_and_long_table_are_split_between_items_and_rows() -> None:
    item = "tea " * 30
    assert {kind for kind, _ in shown(f"- {item}\n" * 10)} == {"list"}
    assert len(shown(f"- {item}\n" * 10)) == 10
    assert len(shown("| a | b |\n|---|---|\n" + f"| x | {item} |\n" * 10)) == 10


@pytest.mark.parametrize(
    ("text", "first", "expected"),
    [
        ("One.\n\nTwo.\n\nThree.", "Two.", "One.\n\nTwo.\n\nThree."),
        ("Two kinds.\n\n- Green\n- Black", "Two kinds.", "Two kinds.\n\n- Green\n- Black"),
        (f"{'Tea. ' * 130}\n\nTwo.", "Two.", "Two."),
        ("One.\n\n## Tea\n\nTwo.", "Two.", "Two."),
        ("One.\n\nTwo:\n\n| a | b |\n|---|---|\n| c | d |", "One.", "One."),
        ("One [\n\n1] two.", "One [", "One ["),
    ],
    ids=["paragraphs", "list", "too long", "heading between", "announcement", "open bracket"],
)
def test_block_is_widened_by_its_neighbours(text: str, first: str, expected: str) -> None:
    (block,) = [block for block in split_blocks(text) if block.text == first]
    larger = widened(text, block)
    assert larger.text == expected
    assert text[larger.start : larger.end].split() == expected.split()


def test_row_of_a_table_and_item_of_a_long_list_are_not_widened() -> None:
    table = "Tea.\n\n| **tea** | a drink |\n| **pot** | a vessel |"
    items = "\n".join(f"- {'tea ' * 100}{number}" for number in range(4))
    for text in (table, f"Tea.\n\n{items}"):
        block = split_blocks(text)[1]
        assert widened(text, block) == block


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Read [the manual](https://example.org/1) now.", "Read the manual now."),
        ("Read [the\nmanual](https://example.org/1) now.", "Read the manual now."),
        ("![A cup](cup.png) of tea", "A cup of tea"),
        ("<p>Tea <!-- hot --> is here</p>", "Tea is here"),
        ("Open <http://127.0.0.1:8420>, then <b>wait</b>.", "Open http://127.0.0.1:8420, then wait."),
        ("Tea is hot [1], they say [2, 3].", "Tea is hot, they say."),
        ("Take `argv[1]` of [2] ``row[3]``.", "Take `argv[1]` of ``row[3]``."),
    ],
)
def test_plain_line_has_no_links_tags_and_markers(raw: str, text: str) -> None:
    assert plain_line(raw) == text


@pytest.mark.parametrize(
    "raw",
    ["Pay [[1]2] now", "Pay [![](x)3] now", "Pay [[[1]2]3] now", "Pay [1](http://e) now", "Pay [a [1]](http://e) x"],
)
def test_marker_in_a_document_is_removed(raw: str) -> None:
    assert without_markers(plain_line(raw)) == plain_line(raw)
    assert "](" not in plain_line(raw)


PIECES = ["Tea", " is", ". ", "\n", "[", "]", "1", "23", ", ", "(u)", "![", "| ", "- ", "# ", "é", "灯", ": ", "\n\n"]
CODE = ["`", "```", "\n```\n", "~~~", "x" * 90, "|---|\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_no_document_text_yields_a_marker(text: str) -> None:
    for block in split_blocks(text):
        assert without_markers(block.text) == block.text


@given(st.lists(st.sampled_from([*PIECES, *CODE]), max_size=30).map("".join))
def test_ranges_of_any_document_are_exact(text: str) -> None:
    for block in split_blocks(text):
        assert text[block.start : block.end] == text[block.start : block.end].strip()
        assert block.start < block.end <= len(text)
        assert block.text.strip()
        assert all(part.strip() for part in block.parts)
