"""Citation markers: parsed in any split, cited with exact offsets, removed if unknown."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.retrieval.shelf import evidence
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import CitationEvent
from turnwire.core.sentences import citation_coverage
from turnwire.retrieval.citations import MarkerStream, best_quote, without_markers

GREEN = "Green tea is brewed at eighty degrees. Hotter water makes it bitter."
BLACK = "Black tea is brewed with boiling water. Its leaves are oxidised."
FERRY = "The ferry leaves at nine. In winter it leaves at ten."
KNOWN = {1: evidence(1, GREEN, 100), 2: evidence(2, BLACK), 3: evidence(3, FERRY)}


def read(pieces: Sequence[str], offset: int = 0) -> tuple[str, list[CitationEvent], MarkerStream]:
    """Feed the pieces; return the shown text, the citations and the stream."""
    stream = MarkerStream(KNOWN.get, offset)
    out = [item for piece in pieces for item in stream.feed(piece)] + stream.finish()
    shown = "".join(item for item in out if isinstance(item, str))
    assert shown == stream.text
    return shown, [item for item in out if isinstance(item, CitationEvent)], stream


def claims(text: str) -> list[tuple[int, str]]:
    shown, citations, _ = read([text])
    return [(item.index, shown[item.answer_start : item.answer_end]) for item in citations]


# Shown text


@pytest.mark.parametrize(
    ("text", "shown", "cited"),
    [
        ("Tea is hot [1].", "Tea is hot [1].", [1]),
        ("Tea is hot.[1]", "Tea is hot.[1]", [1]),
        ("Tea is hot [1][2].", "Tea is hot [1][2].", [1, 2]),
        ("Tea is hot [1, 3].", "Tea is hot [1][3].", [1, 3]),
        ("Tea is hot [1;2 ,3 ].", "Tea is hot [1][2][3].", [1, 2, 3]),
        ("Tea is hot [ 1 ].", "Tea is hot [1].", [1]),
        ("Tea is hot [1, 1].", "Tea is hot [1].", [1]),
        ("Tea is hot [01].", "Tea is hot [1].", [1]),
        ("Tea is hot [1, 9].", "Tea is hot [1].", [1]),
        ("Tea is hot [9].", "Tea is hot.", []),
        ("Tea is hot \t [9].", "Tea is hot.", []),
        ("Tea is hot [9][1].", "Tea is hot[1].", [1]),
        ("Tea is hot [1][9].", "Tea is hot [1].", [1]),
        ("[9] Tea is hot [0].", " Tea is hot.", []),
        ("Tea\n[9]\nis hot", "Tea\n\nis hot", []),
        ("Tea is hot [1", "Tea is hot [1", []),
        ("Tea is hot [", "Tea is hot [", []),
        ("Tea is hot ", "Tea is hot ", []),
        ("[1]", "[1]", [1]),
        ("", "", []),
    ],
)
def test_known_markers_stay_and_unknown_ones_are_removed(text: str, shown: str, cited: list[int]) -> None:
    result, citations, _ = read([text])
    assert result == shown
    assert [item.index for item in citations] == cited


@pytest.mark.parametrize(
    "text",
    [
        "Read [the manual](https://example.org/a?b[]=1) and [RFC 2119](https://example.org/rfc).",
        "![A cup](cup.png) and [^1] and [x] and [1a] and [a1] and [-1] and [1.5] and [1-3]",
        "[2024] was a good year, [1000] were there.",
        "- [ ] to do\n- [x] done\n- []",
        "A list [a, b] and [1, b] and [,] and [;]",
        "[1: see below]: https://example.org",
    ],
)
def test_other_brackets_stay(text: str) -> None:
    assert read([text])[:2] == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "Take `row[1]` or ``row[9]``.",
        "So:\n\n```python\nfirst = row[1]\nlast = row[9]  # [2]\n```\n",
        "````\n```\nrow[1]\n```\n````\n",
        "An open fence\n```\nrow[1]\n\nrow[9]",
    ],
)
def test_marker_in_code_is_text(text: str) -> None:
    assert read([text])[:2] == (text, [])
    assert read(list(text))[:2] == (text, [])
    assert without_markers(text) == text


def test_marker_after_code_is_a_marker() -> None:
    text = "`row[1]` [1].\n\n```\nrow[9]\n```\nSo it is [9].\n\nA stray ` tick [9]\nends with its line [9]."
    shown = "`row[1]` [1].\n\n```\nrow[9]\n```\nSo it is.\n\nA stray ` tick [9]\nends with its line."
    for pieces in (
        [text],
        list(text),
        ["`row[1]` [1].\n\n", "```", "\nrow[9]\n", "```", "\nSo" + text.split("\nSo")[1]],
    ):
        result, citations, stream = read(pieces)
        assert result == shown
        assert [item.index for item in citations] == [1]
        assert stream.unknown == [9, 9]


def test_unknown_numbers_are_recorded() -> None:
    _, _, stream = read(["Hot [9], green [1, 12], old [9]."])
    assert stream.unknown == [9, 12, 9]


@pytest.mark.parametrize(("text", "has_prose"), [("[1][2]", False), (" \n[1].", False), ("", False), ("[1] a", True)])
def test_markers_alone_are_no_prose(text: str, has_prose: bool) -> None:
    assert read([text])[2].has_prose == has_prose


def test_text_is_released_once_it_cannot_become_a_marker() -> None:
    stream = MarkerStream(KNOWN.get)
    assert stream.feed("Tea is") == ["Tea is"]
    assert stream.feed(" hot") == [" hot"]
    assert stream.feed(" ") == []
    assert stream.feed("[") == []
    assert stream.feed("1") == []
    marker, citation = stream.feed("]")
    assert marker == " [1]"
    assert isinstance(citation, CitationEvent)
    assert stream.feed(" [") == []
    assert stream.feed("see") == [" [see"]


def test_held_back_text_is_bounded() -> None:
    stream = MarkerStream(KNOWN.get)
    stream.feed("[")
    shown = "".join(str(item) for _ in range(300) for item in stream.feed("1, "))
    assert len(shown) > 600


FRAGMENTS = st.sampled_from(
    [
        *("Tea is green", ". ", " ", "  ", "\t", "\n", "\n\n", "- ", "é", "灯台。", "🍵", "\u0000", "\x1e", " " * 50),
        *("`", "``", "```", "````", "[", "]", "1", "2", "9", "12", "٣", ",", ";", "(u)", "[a](u)", "x = y[1]"),
        *(" [1]", "[1, 2]", "[ 3 ]", "[1", "[9]", " [9]", "[" + " " * 60 + "1]", "[1" + ", 1" * 30 + "]"),
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=30).map("".join)


@given(text=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=12))
@example(text="```\nrow[1]\n```", cuts=[3])
@example(text="```\nrow[1]\n```", cuts=[1, 2, 3, 4])
@example(text="Hot [" + " " * 60 + "1].", cuts=[50])
@example(text="Hot [1" + ", 1" * 30 + "].", cuts=[60])
def test_any_split_gives_the_same_answer_and_citations(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(places)]
    shown, citations, stream = read([text])
    for result, cited, other in (read(pieces), read(list(text))):
        assert result == shown
        assert cited == citations
        assert other.unknown == stream.unknown
        assert other.has_prose == stream.has_prose


@given(TEXTS)
def test_offsets_count_the_text_that_the_log_keeps(text: str) -> None:
    shown, citations, _ = read([text])
    assert clean_text(shown) == shown
    for item in citations:
        assert item.answer_start is not None
        assert item.answer_end is not None
        assert 0 <= item.answer_start <= item.answer_end <= len(shown)
        source = KNOWN[item.index].passage
        assert item.source_start is not None
        assert item.source_end is not None
        inside = slice(item.source_start - source.start, item.source_end - source.start)
        assert source.text[inside] == item.supporting_quote
    if "[" not in text:
        assert shown == clean_text(text)


# Citations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tea is hot [1].", [(1, "Tea is hot")]),
        ("Tea is hot. [1]", [(1, "Tea is hot.")]),
        ("Tea is hot.[1]", [(1, "Tea is hot.")]),
        ("Tea is hot [1]. Coffee is black [2].", [(1, "Tea is hot"), (2, "Coffee is black")]),
        ("Tea is hot. [1] Coffee is black. [2]", [(1, "Tea is hot."), (2, "Coffee is black.")]),
        ("Tea is hot.[1] Coffee is black.[2]", [(1, "Tea is hot."), (2, "Coffee is black.")]),
        ("Tea is hot.[1][2] Coffee is black.[3]", [(1, "Tea is hot."), (2, "Tea is hot."), (3, "Coffee is black.")]),
        ("Tea is hot. [1] [2]", [(1, "Tea is hot."), (2, "Tea is hot.")]),
        ("Tea [1] and coffee [2] are hot.", [(1, "Tea"), (2, "Tea [1] and coffee")]),
        ("- Tea is hot [1]\n- Coffee is black [2]\n", [(1, "- Tea is hot"), (2, "- Coffee is black")]),
        ("Tea is hot.\n\n[1] Coffee", [(1, "Tea is hot.")]),
        ("茶は熱い。[1]コーヒーは黒い。[2]", [(1, "茶は熱い。"), (2, "コーヒーは黒い。")]),
        ("See e.g. green tea [1]. It is 5.5 degrees [2].", [(1, "See e.g. green tea"), (2, "It is 5.5 degrees")]),
        ("[1]", [(1, "")]),
    ],
)
def test_citation_has_the_range_of_its_sentence(text: str, expected: list[tuple[int, str]]) -> None:
    assert claims(text) == expected


def test_offsets_continue_after_earlier_text() -> None:
    _, (citation,), _ = read(["Tea is hot [1]."], offset=40)
    assert (citation.answer_start, citation.answer_end) == (40, 50)


def test_citation_quotes_the_supporting_sentence() -> None:
    _, (first, second), _ = read(["With hotter water it gets bitter [1]. The brewing takes eighty degrees [1]."])
    assert first.supporting_quote == "Hotter water makes it bitter."
    assert (first.source_start, first.source_end) == (139, 168)
    assert second.supporting_quote == "Green tea is brewed at eighty degrees."
    assert (second.source_start, second.source_end) == (100, 138)
    assert (first.document_id, first.title, first.source_tool) == ("d1", "Document 1", "search_documents")


LENGTH = 400_000


@pytest.mark.parametrize("piece", [" " * LENGTH + "x", "[1" * LENGTH, "`" * LENGTH, "[" * LENGTH, "[1, " * LENGTH])
def test_repeated_markers_are_parsed_in_linear_time(piece: str) -> None:
    # Quadratic code would not end before the test's timeout.
    read([piece, piece])


@pytest.mark.parametrize("claim", ["", "Nothing alike", "water"])
@pytest.mark.parametrize("passage", ["x", GREEN, "a" * 5_000, "\n\n- one\n- two\n"])
def test_quote_of_any_claim_is_bounded(claim: str, passage: str) -> None:
    start, end = best_quote(passage, claim)
    assert passage[start:end].strip()
    assert end - start <= 600


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Tea is hot [1]. Coffee is black [2].", 1.0),
        ("Tea is hot. [1] Coffee is black.[2]", 1.0),
        ("Tea is hot [1]. Coffee is black.", 0.5),
        ("Tea is hot.", 0.0),
        ("[1]", 0.0),
        ("", 0.0),
    ],
)
def test_citation_coverage_is_the_share_of_cited_sentences(answer: str, share: float) -> None:
    assert citation_coverage(answer) == share
