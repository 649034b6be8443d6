"""Extractive answers: the choice of sentences and their text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.retrieval.shelf import GREEN, assert_exact, collect, evidence, put, synthesise
from turnwire.retrieval.citations import without_markers
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.sentences import Matcher
from turnwire.retrieval.synthesis import pick_sentences, sentence_text


def picked(question: str, *texts: str, count: int = 3) -> list[str]:
    options = [evidence(number, text) for number, text in enumerate(texts, 1)]
    picks = pick_sentences(question, Matcher(question, {}), options, count)
    for pick in picks:
        assert pick.text == sentence_text(pick.evidence.passage.text[pick.start : pick.end])
    return [pick.text for pick in picks]


# Choice of sentences


def test_best_sentence_comes_first_and_irrelevant_ones_are_dropped() -> None:
    text = "The pier is long. Green tea is brewed at eighty degrees. Tea is old. Boats come and go."
    assert picked("How is green tea brewed?", text, count=1) == ["Green tea is brewed at eighty degrees."]
    assert picked("How is green tea brewed?", text) == ["Green tea is brewed at eighty degrees.", "Tea is old."]


def test_sentences_of_one_passage_keep_their_order() -> None:
    text = "Tea grows on hills. It rains. Green tea is brewed at eighty degrees. The tea is drunk hot."
    chosen = picked("How is green tea brewed?", text)
    assert chosen == ["Tea grows on hills.", "Green tea is brewed at eighty degrees.", "The tea is drunk hot."]


def test_duplicate_sentence_is_dropped() -> None:
    text = "Green tea is brewed at eighty degrees."
    assert picked("How is green tea brewed?", text, f"{text} So they say.", "# Tea\n\nGreen tea is brewed at 80.") == [
        text
    ]


def test_definition_question_gets_the_definition_first() -> None:
    uses = "Oolong and more oolong, said the captain of oolong ships, who sold oolong."
    says = "Oolong is a tea that is half oxidised."
    assert picked("What is oolong?", uses, says, count=1) == [says]


@pytest.mark.parametrize(
    "text",
    [
        "# Green tea\n\nIt is brewed at eighty degrees, the green tea.",
        "Green tea:\n\nIt is brewed at eighty degrees, the green tea.",
        "| green tea | brewed |\n|---|---|\n| x | y |\n\nIt is brewed at eighty degrees, the green tea.",
        "green_tea = brew(green, tea); brewed(green_tea);\n\nIt is brewed at eighty degrees, the green tea.",
    ],
    ids=["heading", "lead-in", "table header", "code"],
)
def test_lead_in_ranks_below_an_answer(text: str) -> None:
    assert picked("How is green tea brewed?", text, count=1) == ["It is brewed at eighty degrees, the green tea."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Twelve euros.", ["Twelve euros."]),
        ("# Price\n\nTwelve euros.", ["Twelve euros."]),
        ("# The price of tea", ["The price of tea"]),
        ("---", []),
        ("", []),
    ],
)
def test_short_sentence_is_picked_if_there_is_no_other(text: str, expected: list[str]) -> None:
    assert picked("What is the price?", text, count=1) == expected


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("灯台はどこにありますか", "猫が好きです。灯台は海の近くにあります。", "灯台は海の近くにあります。"),
        ("绿茶怎么泡", "黑茶很贵。绿茶用八十度的水泡。", "绿茶用八十度的水泡。"),
    ],
)
def test_text_without_spaces_is_split_into_sentences(question: str, text: str, expected: str) -> None:
    assert picked(question, text, count=1) == [expected]


async def test_chinese_question_is_answered_without_a_model(library: Library, searcher: Searcher) -> None:
    put(library, "cha.md", "# 茶\n\n黑茶很贵。绿茶用八十度的水泡两分钟。")
    written = await synthesise((await collect("绿茶用多少度的水泡", searcher)).result)
    assert "绿茶用八十度的水泡两分钟。" in written.text
    assert written.mode == "extractive"
    assert_exact(library, written.citations)


async def test_tiny_document_is_quoted(library: Library, searcher: Searcher) -> None:
    put(library, "price.md", "# Price of a lifeboat\n\nNinety crowns.")
    written = await synthesise((await collect("What is the price of a lifeboat?", searcher)).result)
    assert "Ninety crowns." in written.text


# Text of a sentence


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("- Tea is\n  hot.", "Tea is hot."),
        ("* Tea", "Tea"),
        ("3. Tea", "Tea"),
        ("> Tea", "Tea"),
        ("## Tea", "Tea"),
        ("| Tea | eighty degrees |", "Tea: eighty degrees"),
        ("|---|:--|", ""),
        ("Read [the manual](https://example.org/1) now.", "Read the manual now."),
        ("![A cup](cup.png) of tea", "A cup of tea"),
        ("Tea is hot [1], they say [2, 3].", "Tea is hot, they say."),
        ("Tea is hot [ 4 ].", "Tea is hot."),
        ("Take `argv[1]` of [2] ``row[3]``.", "Take `argv[1]` of ``row[3]``."),
        ("```\nrow[1]\n```", "\n\n```\nrow[1]\n```\n\n"),
        ("x" * 700, "x" * 599 + "…"),
    ],
)
def test_sentence_text_is_one_line_without_markup(raw: str, text: str) -> None:
    assert sentence_text(raw) == text


@pytest.mark.parametrize(
    "raw",
    ["Pay [[1]2] now", "Pay [![](x)3] now", "Pay [[[1]2]3] now", "Pay [1](http://e) now", "Pay [a [1]](http://e) x"],
)
def test_marker_in_a_document_is_removed(raw: str) -> None:
    assert without_markers(sentence_text(raw)) == sentence_text(raw)
    assert "](" not in sentence_text(raw)


PIECES = [
    "Tea",
    " is",
    ". ",
    "\n",
    "[",
    "]",
    "1",
    "23",
    ", ",
    "(u)",
    "![",
    "| ",
    "- ",
    "# ",
    "é",
    "灯",
    ": ",
    "\n\n",
    "x" * 90,
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_no_document_text_yields_a_marker(text: str) -> None:
    for chosen in picked("Is tea 灯?", text):
        assert without_markers(chosen) == chosen
        assert len(chosen) <= 600


@given(st.lists(st.sampled_from([*PIECES, "`", "```", "\n```\n"]), max_size=25).map("".join))
def test_quotes_of_any_document_are_exact(text: str) -> None:
    passage = evidence(1, text).passage
    for pick in pick_sentences(GREEN, Matcher(GREEN, {}), [evidence(1, text)], 5):
        assert passage.text[pick.start : pick.end].strip()
        assert pick.text.strip()
