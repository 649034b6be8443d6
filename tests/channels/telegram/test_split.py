"""Splitting of long answers into messages."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.channels.telegram.bot_api import check_entities, units
from turnwire.channels.telegram.markdown import Entity, Formatted, messages, render, split

TEXTS = st.text(st.sampled_from("ab .!?\n\n\n🎉é漢\u200d\u0301👩‍💻"), max_size=400)


@st.composite
def formatted_texts(draw: st.DrawFn) -> Formatted:
    text = draw(TEXTS)
    offsets = sorted({units(text[:index]) for index in range(len(text) + 1)})
    entities: list[Entity] = []
    start = 0
    while start < len(offsets) - 1 and draw(st.booleans()):
        first = draw(st.integers(start, len(offsets) - 2))
        last = draw(st.integers(first + 1, len(offsets) - 1))
        kind: Any = draw(st.sampled_from(["bold", "pre", "code"]))
        entities.append(Entity(kind, offsets[first], offsets[last] - offsets[first]))
        start = last
    return Formatted(text, tuple(entities))


@given(formatted_texts(), st.integers(10, 80))
def test_split_keeps_the_text_and_its_entities_within_the_limit(formatted: Formatted, limit: int) -> None:
    pieces = split(formatted, limit)
    assert "".join(piece.text for piece in pieces) == formatted.text
    assert all(units(piece.text) <= limit for piece in pieces)
    for piece in pieces:
        check_entities(piece.text, piece.plain_entities())
    # Every entity keeps its length, in one piece or several.
    length = {
        kind: sum(entity.length for entity in formatted.entities if entity.type == kind)
        for kind in ("bold", "pre", "code")
    }
    for kind, expected in length.items():
        assert sum(entity.length for piece in pieces for entity in piece.entities if entity.type == kind) == expected


@given(formatted_texts(), st.integers(10, 80))
def test_split_of_a_growing_text_keeps_its_full_pieces(formatted: Formatted, limit: int) -> None:
    plain = Formatted(formatted.text)
    whole = split(plain, limit)
    for size in range(0, len(formatted.text), 7):
        part = split(Formatted(formatted.text[:size]), limit)
        # All pieces but the last are final.
        assert part[:-1] == whole[: len(part) - 1]


def test_split_prefers_paragraphs_then_lines_then_sentences_then_words() -> None:
    def texts(text: str) -> list[str]:
        return [piece.text for piece in split(Formatted(text), 30)]

    assert texts("A first paragraph.\n\nAnd a second one, longer.") == [
        "A first paragraph.\n\n",
        "And a second one, longer.",
    ]
    assert texts("A first line of it,\nand a second one, longer.") == [
        "A first line of it,\n",
        "and a second one, longer.",
    ]
    assert texts("A first sentence of it. And a second one.") == ["A first sentence of it. ", "And a second one."]
    assert texts("one two three four five six seven") == ["one two three four five six ", "seven"]
    assert texts("x" * 65) == ["x" * 30, "x" * 30, "x" * 5]


def test_code_block_that_fits_in_a_message_is_not_split() -> None:
    text = "Some words before the code.\n\n"
    code = "\n".join(f"line {number}" for number in range(6))
    formatted = Formatted(text + code, (Entity("pre", units(text), units(code)),))
    first, second = split(formatted, 50)
    assert (first.text, first.entities) == (text, ())
    assert (second.text, second.entities) == (code, (Entity("pre", 0, units(code)),))


def test_long_code_block_is_split_between_lines_into_code_blocks() -> None:
    source = "```python\n" + "\n".join(f"line_number_{number} = {number}" for number in range(400)) + "\n```"
    pieces = messages(render(source))
    assert len(pieces) > 1
    for piece in pieces:
        (entity,) = piece.entities
        assert (entity.type, entity.language, entity.offset) == ("pre", "python", 0)
        assert entity.length == units(piece.text)
        assert piece.text.startswith("line_number_")


def test_combined_emoji_is_not_split() -> None:
    family = "👨‍👩‍👧‍👦"
    pieces = split(Formatted(family * 10), 30)
    assert all(units(piece.text) % units(family) == 0 for piece in pieces)


def test_messages_are_trimmed_as_telegram_does() -> None:
    text = "\n\n  some words  \n\n"
    assert messages(Formatted(text, (Entity("bold", 4, 12),))) == [Formatted("some words", (Entity("bold", 0, 10),))]
    assert messages(Formatted("  code\n", (Entity("pre", 0, 7),))) == [Formatted("  code", (Entity("pre", 0, 6),))]


def test_blank_message_is_left_out() -> None:
    pieces = messages(render("```\na" + "\n" * 9000 + "b\n```"))
    assert [piece.text.strip() for piece in pieces] == ["a", "b"]
