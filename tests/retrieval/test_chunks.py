"""Splitting documents: nothing lost, nothing repeated, and only at allowed borders."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.retrieval.paper import pdf
from turnwire.retrieval.documents.document import MAX_CHUNK, Block, Chunk, ParsedDocument, split_document
from turnwire.retrieval.documents.parser import parse, parse_markdown, parse_plain

WHOLE = 6_000


def check(parsed: ParsedDocument) -> list[Chunk]:
    """Check the invariants of every document and return its chunks."""
    text, chunks = parsed.text, split_document(parsed)
    assert "".join(chunk.text for chunk in chunks) == text
    for before, after in pairwise(chunks):
        assert before.start + len(before.text) == after.start
    for chunk in chunks:
        texts = chunk.text.rstrip()
        assert text[chunk.start : chunk.end] == texts
        first = chunk.start + len(texts) - len(texts.lstrip())
        assert chunk.line_start == text.count("\n", 0, first) + 1
        assert chunk.line_end == max(chunk.line_start, text.count("\n", 0, chunk.end) + 1)
    assert all(chunk.text.strip() for chunk in chunks[1:])
    return chunks


words = st.integers(1, 400).map(lambda count: " ".join(["tea"] * count))
sentences = st.lists(words.map(lambda text: f"A {text}."), min_size=1, max_size=8).map(" ".join)
headings = st.tuples(st.integers(1, 4), st.sampled_from(["Tea", "Green tea", "Leaves " * 30])).map(
    lambda made: f"{'#' * made[0]} {made[1].strip()}"
)
fences = st.integers(1, 90).map(
    lambda count: "```\n" + "\n".join(f"code {n}. More. {'x' * 40}" for n in range(count)) + "\n```"
)
tables = st.tuples(st.integers(1, 30), st.integers(1, 270)).map(
    lambda made: "| a | b |\n| - | - |\n" + "\n".join(f"| {n}. Row | {'tea ' * made[1]}|" for n in range(made[0]))
)
lists = st.integers(1, 60).map(lambda count: "\n".join(f"- item {n} of tea. And more." for n in range(count)))
documents = st.lists(headings | sentences | fences | tables | lists, min_size=1, max_size=12)


@given(documents)
@example(["# " + "h" * 100, "| a | b |\n| - | - |\n| " + "x" * 1_180 + " |"])
@example(["# " + "h" * 100, "```\n" + "x\n" * 2_980 + "```"])
@example(["# Tea"] * 300)
def test_markdown_document_is_split_at_its_blocks(blocks: list[str]) -> None:
    text = "\n\n".join(blocks)
    chunks = check(parse_markdown(text))
    borders = [chunk.start for chunk in chunks]
    # No border is inside of code or a table row.
    for whole in [
        *re.finditer(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE),
        *re.finditer(r"^\|.*$", text, re.MULTILINE),
    ]:
        assert len(whole[0]) <= WHOLE
        assert not any(whole.start() < border < whole.end() for border in borders)
    for chunk in chunks:
        texts = chunk.text.strip()
        assert len(texts) <= MAX_CHUNK or "```" in texts
        assert len(texts) <= WHOLE + MAX_CHUNK
        # A heading in a chunk is at its beginning.
        lines = [line for line in re.sub(r"```.*?```", "", texts, flags=re.DOTALL).split("\n") if line]
        body = [number for number, line in enumerate(lines) if not re.match("#+ ", line)]
        assert all(number >= len(lines) - len(body) for number in body)


@given(documents)
def test_chunk_has_the_headings_above_it(blocks: list[str]) -> None:
    text = "\n\n".join(blocks)
    path: list[tuple[int, str]] = []
    expected: dict[int, tuple[str, ...]] = {}
    offset = 0
    for block in blocks:
        if block.startswith("#"):
            marks, _, name = block.partition(" ")
            path = [entry for entry in path if entry[0] < len(marks)] + [(len(marks), name[:200])]
        expected[offset] = tuple(name for _, name in path)
        offset += len(block) + 2
    for chunk in split_document(parse_markdown(text)):
        (last,) = [headings for start, headings in expected.items() if start < chunk.end][-1:]
        assert chunk.headings == last


@given(
    st.lists(
        st.text(alphabet="tea. \n\té你。", max_size=200)
        | st.integers(1, 3_000).map(lambda count: " " * count)
        | st.integers(1, 3_000).map(lambda count: "\n" * count)
        | st.integers(1, 3_000).map(lambda count: "x" * count),
        max_size=8,
    )
)
@example(["a", "\n" * 3_000, "b"])
@example([" " * 3_000, "a", " " * 3_000])
def test_any_text_is_split_and_no_chunk_is_too_long(parts: list[str]) -> None:
    for chunk in check(parse_plain("".join(parts))):
        assert chunk.end - chunk.start <= MAX_CHUNK


@given(st.text(alphabet=st.sampled_from("# \n`~-*>|ab[]<1.\t="), max_size=120))
def test_any_markdown_is_split(text: str) -> None:
    check(parse_markdown(text))


def test_short_paragraphs_share_a_chunk_and_a_heading_begins_one() -> None:
    chunks = split_document(parse_markdown("Intro.\n\nMore.\n\n# Tea\n\nHot.\n\n## Green\n\nLeaves.\n"))
    assert [(chunk.text.strip(), chunk.headings) for chunk in chunks] == [
        ("Intro.\n\nMore.", ()),
        ("# Tea\n\nHot.", ("Tea",)),
        ("## Green\n\nLeaves.", ("Tea", "Green")),
    ]
    assert [(chunk.line_start, chunk.line_end) for chunk in chunks] == [(1, 3), (5, 7), (9, 11)]


def test_long_paragraph_is_split_between_sentences() -> None:
    text = " ".join(f"Sentence number {number} is about tea." for number in range(100))
    chunks = check(parse_markdown(f"# Tea\n\n{text}"))
    assert len(chunks) > 2
    assert all(chunk.text.rstrip().endswith("tea.") for chunk in chunks)
    assert all(chunk.end - chunk.start > MAX_CHUNK - 100 for chunk in chunks[:-1])


def test_endless_sentence_is_split_anywhere() -> None:
    chunks = check(parse_plain("x" * 5_000))
    assert [len(chunk.text) for chunk in chunks] == [1_200, 1_200, 1_200, 1_200, 200]


def test_very_long_code_is_split_between_lines() -> None:
    chunks = check(parse_markdown("```\n" + "a line of code\n" * 1_000 + "```\n"))
    assert len(chunks) == 3
    assert all(chunk.end - chunk.start <= WHOLE for chunk in chunks)
    assert all(chunk.text.startswith(("a line", "```\n")) for chunk in chunks)


def test_table_is_split_between_rows() -> None:
    rows = [f"| {number} | {'tea ' * 30}|" for number in range(40)]
    chunks = check(parse_markdown("| n | what |\n| - | - |\n" + "\n".join(rows)))
    assert len(chunks) > 3
    assert all(chunk.text.startswith("| ") and chunk.text.rstrip().endswith("|") for chunk in chunks)


def test_consecutive_headings_are_split_at_the_limit() -> None:
    chunks = check(parse_markdown("\n".join(f"# Heading {number}" for number in range(2_000))))
    assert max(len(chunk.text) for chunk in chunks) <= MAX_CHUNK
    endless = check(parse_markdown(f"# {'tea ' * 5_000}\n\nHot."))
    assert max(len(chunk.text) for chunk in endless) <= MAX_CHUNK
    assert max(len(heading) for chunk in endless for heading in chunk.headings) == 200


def test_chunk_stays_on_its_page() -> None:
    chunks = check(parse("tea.pdf", pdf("One.", "Two.\nMore.", "", "Four.")))
    assert [(chunk.page, chunk.text.strip()) for chunk in chunks] == [(1, "One."), (2, "Two.\nMore."), (4, "Four.")]


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_document_without_blocks_has_chunks(text: str) -> None:
    assert "".join(chunk.text for chunk in split_document(ParsedDocument(text, []))) == text


def test_text_before_the_first_block_is_kept() -> None:
    chunks = check(ParsedDocument("before\n\nfirst", [Block(8)]))
    assert [chunk.text for chunk in chunks] == ["before\n\nfirst"]
    matter = check(parse_markdown("---\ntitle: " + "x" * 3_000 + "\n---\n\n| a |\n| - |\n| 1 |\n"))
    assert max(len(chunk.text) for chunk in matter) <= MAX_CHUNK
