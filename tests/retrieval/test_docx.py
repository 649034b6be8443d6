"""The reader of Word documents."""

import io
import sys
import zipfile
from contextlib import suppress

import pytest

from tests.retrieval.paper import block_texts, with_part, word
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents import parser
from turnwire.retrieval.documents.parser import parse, parse_docx

TEA = word(
    "# Tea", "It is hot.", "", "## Green", "From\nChina.", title="About tea", rows=(("Tea", "Time"), ("Oolong", "3"))
)


def test_docx_paragraphs_headings_and_rows_are_read_in_order() -> None:
    parsed = parse_docx(TEA)
    assert block_texts(parsed) == ["Tea", "It is hot.", "Green", "From\nChina.", "Tea | Time", "Oolong | 3"]
    assert [(block.level, block.heading) for block in parsed.blocks][:3] == [(1, "Tea"), (0, ""), (2, "Green")]
    assert parsed.title == "About tea"


def test_docx_without_title_has_none() -> None:
    assert parse_docx(word("Tea")).title is None


def test_empty_docx_is_refused() -> None:
    with pytest.raises(UnreadableDocumentError, match="there is no text in it"):
        parse("empty.docx", word())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"Not a Word document",
        TEA[:500],
        TEA[:-200],
        with_part(TEA, "word/document.xml", b"<w:document><unclosed"),
        with_part(TEA, "word/document.xml", b""),
        with_part(TEA, "[Content_Types].xml", b"<Types/>"),
        with_part(TEA, "_rels/.rels", b"no XML"),
    ],
    ids=range(8),
)
def test_broken_docx_is_refused_with_a_reason(content: bytes) -> None:
    with pytest.raises(UnreadableDocumentError) as refused:
        parse("broken.docx", content)
    assert str(refused.value).startswith(("it is not a valid Word document", "it cannot be parsed"))


def test_damaged_docx_is_read_or_refused() -> None:
    for location in range(0, len(TEA), 401):
        with suppress(UnreadableDocumentError):
            parse("broken.docx", TEA[:location] + b"\xff" * 8 + TEA[location + 8 :])


def test_zip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = with_part(TEA, "word/document.xml", bytes(3_000_000))
    assert len(bomb) < 100_000
    monkeypatch.setattr(parser, "_MAX_UNPACKED_BYTES", 2_000_000)
    with pytest.raises(UnreadableDocumentError, match="unpacks to more than 200 MB"):
        parse_docx(bomb)
    assert parse_docx(TEA).blocks


def test_xml_entity_is_not_expanded() -> None:
    laughs = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    with zipfile.ZipFile(io.BytesIO(TEA)) as archive:
        source = archive.read("word/document.xml")
    head, _, body = source.partition(b"?>")
    hostile = head + b"?>" + laughs + body.replace(b"It is hot.", b"It is &b;.")
    assert "haha" not in parse_docx(with_part(TEA, "word/document.xml", hostile)).text


def test_missing_office_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docx", None)
    with pytest.raises(UnreadableDocumentError, match=r"pip install 'turnwire\[office\]'"):
        parser.parse_docx(TEA)
