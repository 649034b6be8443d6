"""Where sentences begin and end, and that no text takes long to look through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire.retrieval.sentences import sentence_spans, sentence_starts


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
def test_a_sentence_ends_where_a_reader_would_stop(text: str, expected: list[str]) -> None:
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
def test_an_abbreviation_does_not_end_a_sentence(text: str) -> None:
    assert sentences(text) == [text]


def test_sentences_of_scripts_without_spaces_end_too() -> None:
    assert sentences("你好。世界！真的？是「的。」好") == ["你好。", "世界！", "真的？", "是「的。」", "好"]


def test_a_list_item_a_heading_and_a_row_stand_like_a_sentence() -> None:
    text = "Intro\n- one\n- two\n  2. three\n# Four\n> five\n| six | 6 |\n| seven | 7 |"
    assert sentences(text) == text.replace("\n  2.", "\n2.").split("\n")


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_a_fence_is_one_sentence(fence: str) -> None:
    code = f"{fence}sh\n# One. Two. Three!\n\n- no item\n{fence}"
    assert sentences(f"Before. \n{code}\n\nAfter. More") == ["Before.", code, "After.", "More"]


def test_a_fence_that_is_never_closed_goes_on_to_the_end() -> None:
    assert sentences("So. \n```\nOne. Two.\n\nThree. Four.") == ["So.", "```\nOne. Two.\n\nThree. Four."]


def test_a_fence_that_is_indented_begins_after_the_sentence_before_it() -> None:
    assert sentences("Run this.\n   ```\n   make. Now.\n   ```") == ["Run this.", "```\n   make. Now.\n   ```"]


def test_a_row_of_a_table_is_one_sentence_whatever_stands_in_it() -> None:
    text = "| One. Two. | Three! Four? |\n  | Five. Six | 7 |\nAfter. End"
    assert sentences(text) == ["| One. Two. | Three! Four? |", "| Five. Six | 7 |\nAfter.", "End"]


@given(st.text(alphabet=st.sampled_from("aB.!?… \n\t|`~-#1)。”'"), max_size=60) | st.text(max_size=60))
def test_nothing_but_blank_space_is_outside_of_sentences(text: str) -> None:
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
def test_no_text_takes_longer_than_its_length_allows(piece: str) -> None:
    # Whoever looked at the whole text for every sentence would not end before this test's time is over.
    sentence_starts(piece * (300_000 // len(piece)))
