"""Parsing files: formats, encodings and arbitrary bytes."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.retrieval.paper import block_texts, pdf, word
from turnwire.core.errors import UnreadableDocumentError
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.documents import parser
from turnwire.retrieval.documents.document import split_document
from turnwire.retrieval.documents.parser import SUFFIXES, format_of, parse


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.md", "markdown"),
        ("folder/B.MarkDown", "markdown"),
        ("a.txt", "text"),
        ("a.b.HTML", "html"),
        ("a.pdf", "pdf"),
        ("a.docx", "docx"),
        ("a.exe", None),
        ("md", None),
        (".md", None),
        ("", None),
    ],
)
def test_format_is_known_by_the_suffix(name: str, kind: str | None) -> None:
    assert format_of(name) == kind


def test_every_format_is_parsed() -> None:
    contents = {
        "markdown": b"# Tea\n\nHot.",
        "text": b"Tea\n\nHot.",
        "html": b"<h1>Tea</h1><p>Hot.</p>",
        "pdf": pdf("Tea", "Hot."),
        "docx": word("# Tea", "Hot."),
    }
    assert set(contents) == set(SUFFIXES.values())
    for suffix, kind in SUFFIXES.items():
        assert [text.strip("# ") for text in block_texts(parse(f"tea{suffix}", contents[kind]))] == ["Tea", "Hot."]


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnreadableDocumentError, match=r"its format can't be read. Supported: \.adoc \.docx .*\.pdf"):
        parse("tea.exe", b"Tea")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Tee für dich".encode(), "Tee für dich"),
        (codecs.BOM_UTF8 + "Tee für dich".encode(), "Tee für dich"),
        ("Tee für dich".encode("utf-16"), "Tee für dich"),
        (codecs.BOM_UTF16_BE + "Tee für dich".encode("utf-16-be"), "Tee für dich"),
        ("Tee für “dich”".encode("cp1252"), "Tee für “dich”"),
        (b"one\r\ntwo\rthree\nfour", "one\ntwo\nthree\nfour"),
        (b"a\x1b[31mred\x07 \x7ftea\x0c", "a[31mred tea"),
    ],
)
def test_text_is_decoded_in_its_encoding(content: bytes, text: str) -> None:
    assert parse("tea.txt", content).text == text


@pytest.mark.parametrize("name", ["tea.md", "tea.txt", "tea.html"])
def test_binary_file_with_text_suffix_is_refused(name: str) -> None:
    with pytest.raises(UnreadableDocumentError, match="it is not text"):
        parse(name, b"\x7fELF\0\0\0")


@pytest.mark.parametrize("name", ["tea.md", "tea.txt", "tea.html"])
@pytest.mark.parametrize("content", [b"", b" \n\t\n", codecs.BOM_UTF8, b"\x07"])
def test_file_without_text_is_refused(name: str, content: bytes) -> None:
    with pytest.raises(UnreadableDocumentError, match="there is no text in it"):
        parse(name, content)


@pytest.mark.parametrize("suffix", [".docx", ".html", ".md", ".pdf", ".txt"])
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_parsed_or_refused(suffix: str, content: bytes) -> None:
    try:
        parsed = parse(f"document{suffix}", content)
    except UnreadableDocumentError:
        return
    # The log's characters are removed already, so that an offset means the same in both.
    assert parsed.text == clean_text(parsed.text)
    assert "".join(chunk.text for chunk in split_document(parsed)) == parsed.text


def test_unexpected_parser_error_is_an_unreadable_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(parser, "parse_markdown", fail)
    with pytest.raises(UnreadableDocumentError, match=r"it cannot be parsed \(IndexError\)"):
        parse("tea.md", b"# Tea")


LONG = "Tea " * 1_000
TITLED = {
    "heading.md": f"# {LONG}\n\nTea.".encode(),
    "matter.md": f"---\ntitle: {LONG}\n---\nTea.".encode(),
    "tea.html": f"<title>{LONG}</title><p>Tea.</p>".encode(),
    "tea.docx": word("Tea.", title="Tea\n" * 60),
    "tea.pdf": pdf("Tea.", title=LONG + r"\000\012\001"),
}


@pytest.mark.parametrize("name", TITLED)
def test_title_is_one_line_of_bounded_length(name: str) -> None:
    """Every event about a document has its title, and every passage is indexed with it."""
    title = parse(name, TITLED[name]).title
    assert title is not None
    assert title == ("Tea " * 50).strip()


def test_blank_title_is_none() -> None:
    assert parse("tea.docx", word("Tea.", title=" ")).title is None
