"""Markdown as Telegram shows it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.channels.telegram.bot_api import check_entities, units, utf16
from turnwire.channels.telegram.markdown import Formatted, render


def looks(markdown: str) -> list[tuple[str, str]]:
    formatted = render(markdown)
    return [(entity.type, utf16(formatted.text, entity.offset, entity.length)) for entity in formatted.entities]


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
    [
        ("**bold** and *italic*", "bold and italic", [("bold", "bold"), ("italic", "italic")]),
        ("~~gone~~ `code`", "gone code", [("strikethrough", "gone"), ("code", "code")]),
        ("# Heading", "Heading", [("bold", "Heading")]),
        ("# A **bold** heading", "A bold heading", [("bold", "A bold heading")]),
        ("***both***", "both", [("bold", "both"), ("italic", "both")]),
        ("🎉 **party** 🎉", "🎉 party 🎉", [("bold", "party")]),
        ("- one\n- two\n  - three", "• one\n• two\n    • three", []),
        ("3. one\n4. two", "3. one\n4. two", []),
        ("> quoted\n> **twice**", "quoted\ntwice", [("blockquote", "quoted\ntwice"), ("bold", "twice")]),
        ("> a\n>> b", "a\n\nb", [("blockquote", "a\n\nb")]),
        ("one\n\ntwo\nthree", "one\n\ntwo\nthree", []),
        ("[here](https://example.org)", "here", [("text_link", "here")]),
        ("[`x`](https://example.org)", "x", [("text_link", "x")]),
        ("**bold `code` bold**", "bold code bold", [("bold", "bold "), ("code", "code"), ("bold", " bold")]),
        ("![a cat](https://example.org/cat.png)", "a cat", [("text_link", "a cat")]),
        ("<b>not HTML</b> &amp; so", "<b>not HTML</b> & so", []),
        ("2 \\* 3", "2 * 3", []),
        ("a\n\n---\n\nb", "a\n\n———\n\nb", []),
    ],
)
def test_it_looks_as_meant(markdown: str, text: str, entities: list[tuple[str, str]]) -> None:
    assert render(markdown).text == text
    assert looks(markdown) == entities


def test_code_keeps_its_language_and_its_lines() -> None:
    formatted = render("```python\nprint(1)\n\n    x = 2\n```")
    assert formatted.text == "print(1)\n\n    x = 2"
    assert [(entity.type, entity.language) for entity in formatted.entities] == [("pre", "python")]


def test_a_table_is_aligned_code() -> None:
    formatted = render("| name | n |\n| --- | --- |\n| **Ada** | 1 |\n| 漢字 | 22 |")
    assert formatted.text == "name │ n\n─────┼───\nAda  │ 1\n漢字 │ 22"
    assert looks("| a |\n| --- |\n| b |")[0][0] == "pre"


@pytest.mark.parametrize(
    "typed", ["**bold un", "*it", "`code", "[link](http", "[link](https://a", "~~gone", "a\n-", "|a|"]
)
def test_what_is_not_closed_yet_stays_as_it_was_typed(typed: str) -> None:
    assert render(typed) == Formatted(typed)


def test_code_that_is_not_closed_yet_is_code_already() -> None:
    assert looks("See:\n\n```py\nprint(") == [("pre", "print(")]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "/relative"])
def test_links_lead_to_the_web_and_to_telegram_only(url: str) -> None:
    assert all(kind != "text_link" for kind, _ in looks(f"[here]({url})"))
    assert looks("[here](tg://user?id=1)") == [("text_link", "here")]


MARKS = st.sampled_from(
    [
        *("**", "*", "_", "~~", "`", "```", "```py\n", "\n", "\n\n", "# ", "- ", "1. ", "> ", "---\n", " | "),
        *("| a | b |\n|---|---|\n| ", "[", "](https://a.b)", "](x)", "![", "\\", "<i>", "&amp;"),
        *("a", "word ", "🎉", "é", "漢", " ", "    ", "\t"),
    ]
)


@given(st.lists(MARKS, max_size=40).map("".join))
@example(">     code that is all there is of a quotation")
def test_telegram_cannot_refuse_what_is_rendered(markdown: str) -> None:
    formatted = render(markdown)
    check_entities(formatted.text, formatted.plain_entities())
    assert formatted.units == units(formatted.text)


@given(st.text(max_size=200))
def test_any_text_can_be_rendered(text: str) -> None:
    formatted = render(text)
    check_entities(formatted.text.encode("utf-16-le", "replace").decode("utf-16-le"), formatted.plain_entities())
