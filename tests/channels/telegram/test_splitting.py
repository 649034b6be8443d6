"""Long answers in several messages: whole, within the limit, cut where it hurts least."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.channels.telegram.bot_api import check_entities, units
from turnwire.channels.telegram.markdown import Entity, Formatted, messages, render, split

TEXTS = st.text(st.sampled_from("ab .!?\n\n\n🎉é漢\u200d\u0301👩‍💻"), max_size=400)


@st.composite
def formatted_texts(draw: st.DrawFn) -> Formatted:
    text = draw(TEXTS)
    places = sorted({units(text[:index]) for index in range(len(text) + 1)})
    entities: list[Entity] = []
    start = 0
    while start < len(places) - 1 and draw(st.booleans()):
        first = draw(st.integers(start, len(places) - 2))
        last = draw(st.integers(first + 1, len(places) - 1))
        kind: Any = draw(st.sampled_from(["bold", "pre", "code"]))
        entities.append(Entity(kind, places[first], places[last] - places[first]))
        start = last
    return Formatted(text, tuple(entities))


@given(formatted_texts(), st.integers(10, 80))
def test_the_pieces_are_the_text_within_the_limit_and_their_entities_fit(formatted: Formatted, limit: int) -> None:
    pieces = split(formatted, limit)
    assert "".join(piece.text for piece in pieces) == formatted.text
    assert all(units(piece.text) <= limit for piece in pieces)
    for piece in pieces:
        check_entities(piece.text, piece.plain_entities())
    # All that was bold is bold, and nothing else.
    length = {
        kind: sum(one.length for one in formatted.entities if one.type == kind) for kind in ("bold", "pre", "code")
    }
    for kind, expected in length.items():
        assert sum(one.length for piece in pieces for one in piece.entities if one.type == kind) == expected


@given(formatted_texts(), st.integers(10, 80))
def test_a_text_that_grows_is_never_cut_anew(formatted: Formatted, limit: int) -> None:
    plain = Formatted(formatted.text)
    whole = split(plain, limit)
    for size in range(0, len(formatted.text), 7):
        part = split(Formatted(formatted.text[:size]), limit)
        # All but the last piece are as they will be in the end.
        assert part[:-1] == whole[: len(part) - 1]


def test_it_is_cut_between_paragraphs_then_lines_then_sentences_then_words() -> None:
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


def test_code_that_fits_in_a_message_is_not_cut() -> None:
    text = "Some words before the code.\n\n"
    code = "\n".join(f"line {number}" for number in range(6))
    formatted = Formatted(text + code, (Entity("pre", units(text), units(code)),))
    first, second = split(formatted, 50)
    assert (first.text, first.entities) == (text, ())
    assert (second.text, second.entities) == (code, (Entity("pre", 0, units(code)),))


def test_code_that_fits_in_no_message_is_cut_between_lines_and_each_piece_is_code() -> None:
    source = "```python\n" + "\n".join(f"line_number_{number} = {number}" for number in range(400)) + "\n```"
    pieces = messages(render(source))
    assert len(pieces) > 1
    for piece in pieces:
        (entity,) = piece.entities
        assert (entity.type, entity.language, entity.offset) == ("pre", "python", 0)
        assert entity.length == units(piece.text)
        assert piece.text.startswith("line_number_")


def test_an_emoji_is_not_torn_apart() -> None:
    family = "👨‍👩‍👧‍👦"
    pieces = split(Formatted(family * 10), 30)
    assert all(units(piece.text) % units(family) == 0 for piece in pieces)


def test_a_message_is_trimmed_as_telegram_would() -> None:
    text = "\n\n  some words  \n\n"
    assert messages(Formatted(text, (Entity("bold", 4, 12),))) == [Formatted("some words", (Entity("bold", 0, 10),))]
    assert messages(Formatted("  code\n", (Entity("pre", 0, 7),))) == [Formatted("  code", (Entity("pre", 0, 6),))]


def test_a_message_that_would_be_blank_is_left_out() -> None:
    pieces = messages(render("```\na" + "\n" * 9000 + "b\n```"))
    assert [piece.text.strip() for piece in pieces] == ["a", "b"]
