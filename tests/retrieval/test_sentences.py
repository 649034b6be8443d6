"""Borders of sentences, and the time to find them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.core.sentences import sentence_spans, sentence_starts


def sentences(text: str) -> list[str]:
    return [text[start:stop] for start, stop in sentence_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ('He said "Well." She left. (It rained.) Then', ['He said "Well."', "She left.", "(It rained.)", "Then"]),
        ("It costs 3.50 a day.\nNot more.", ["It costs 3.50 a day.", "Not more."]),
        ("First line\nof one sentence. Next", ["First line\nof one sentence.", "Next"]),
        ("Really?! Yes... No", ["Really?!", "Yes...", "No"]),
        ("A paragraph\n\nAnother", ["A paragraph", "Another"]),
        ("  Only one  ", ["Only one"]),
    ],
)
def test_sentence_ends_at_its_punctuation(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "See e.g. Section 3 for more",
        "Written by Dr. Smith and J. R. Doe et al. Boston",
        "It works, cf. Fig. 2 and No. 7",
        "It is used vs. Other things",
        "The file ends in .md. and so on",
    ],
)
def test_abbreviation_does_not_end_a_sentence(text: str) -> None:
    assert sentences(text) == [text]


def test_cjk_sentences_end_at_their_punctuation() -> None:
    assert sentences("你好。世界！真的？是「的。」好") == ["你好。", "世界！", "真的？", "是「的。」", "好"]


def test_list_item_heading_and_row_are_sentences() -> None:
    text = "Intro\n- one\n- two\n  2. three\n# Four\n> five\n| six | 6 |\n| seven | 7 |"
    assert sentences(text) == text.replace("\n  2.", "\n2.").split("\n")


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_code_fence_is_one_sentence(fence: str) -> None:
    code = f"{fence}sh\n# One. Two. Three!\n\n- no item\n{fence}"
    assert sentences(f"Before. \n{code}\n\nAfter. More") == ["Before.", code, "After.", "More"]


def test_unclosed_fence_reaches_the_end() -> None:
    assert sentences("So. \n```\nOne. Two.\n\nThree. Four.") == ["So.", "```\nOne. Two.\n\nThree. Four."]


def test_indented_fence_begins_after_the_previous_sentence() -> None:
    assert sentences("Run this.\n   ```\n   make. Now.\n   ```") == ["Run this.", "```\n   make. Now.\n   ```"]


def test_table_row_is_one_sentence() -> None:
    text = "| One. Two. | Three! Four? |\n  | Five. Six | 7 |\nAfter. End"
    assert sentences(text) == ["| One. Two. | Three! Four? |", "| Five. Six | 7 |\nAfter.", "End"]


@given(st.text(alphabet=st.sampled_from("aB.!?… \n\t|`~-#1)。”'"), max_size=60) | st.text(max_size=60))
def test_only_white_space_is_outside_sentences(text: str) -> None:
    spans = sentence_spans(text)
    last = 0
    for start, stop in spans:
        assert last <= start < stop
        assert not text[last:start].strip()
        assert text[start:stop] == text[start:stop].strip()
        last = stop
    assert not text[last:].strip()
    starts = sentence_starts(text)
    assert starts == sorted(set(starts))
    assert all(0 < start < len(text) for start in starts)


@pytest.mark.parametrize(
    "piece",
    [".", "e.g. ", "Vs. ", "foo. bar ", ".'", "a.", "? ", "\n ", "```\na. b\n```\nC. ", "| a. b |\n", "`", "\n|"],
)
def test_hostile_text_is_split_in_linear_time(piece: str) -> None:
    # Quadratic code would not end before the test's timeout.
    sentence_starts(piece * (300_000 // len(piece)))
