"""Web pages as text: the title, the lines and the charset."""

import pytest

from turnwire.tools.html import decode_page, page_text


def test_title_of_a_drawing_is_not_the_title_of_the_page() -> None:
    assert page_text("<svg><title>Logo</title></svg><title>Tea</title><p>Hot") == ("Tea", "Hot")


def test_menus_and_forms_of_a_page_are_read() -> None:
    assert page_text("<nav><a>Home</a></nav><form><label>Name</label><button>Send</button></form>") == (
        "",
        "Home\nName\nSend",
    )


def test_break_begins_a_line_and_a_newline_of_the_source_does_not() -> None:
    assert page_text("<p>one\n two<br>three</p>") == ("", "one two\nthree")


def test_adjacent_custom_elements_are_separate_words() -> None:
    assert page_text("<my-item>green</my-item><my-item>tea</my-item>") == ("", "green tea")


def test_unclosed_head_without_body_hides_no_text() -> None:
    assert page_text("<head><title>Tea</title><p>Hot") == ("Tea", "Hot")


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("é".encode("latin-1"), "iso-8859-1", "é"),
        ("<meta charset=windows-1252>é".encode("cp1252"), None, "<meta charset=windows-1252>é"),
        ("\ufeffé".encode(), None, "é"),
        (b"tea", "no-such-charset", "tea"),
    ],
)
def test_page_is_decoded_by_response_charset_then_meta_then_utf8(body: bytes, charset: str | None, text: str) -> None:
    assert decode_page(body, charset) == text
