"""The readers of PDF, with both libraries."""

import random
from contextlib import suppress

import pypdf
import pytest
from pypdf.errors import DependencyError

from tests.retrieval.paper import block_texts, encrypted, pdf
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents import parser as reader
from turnwire.retrieval.documents.document import ParsedDocument
from turnwire.retrieval.documents.parser import parse

TEA = pdf("Tea is hot.\nVery hot.", "Drink it\nslowly.", title="About tea")


@pytest.fixture(autouse=True, params=["pdfium", "pypdf"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "find_spec", lambda name: object() if request.param == "pdfium" else None)


def read(content: bytes) -> ParsedDocument:
    return reader.parse_pdf(content, max_pages=100)


def failure_reason(content: bytes, max_pages: int = 100) -> str:
    with pytest.raises(UnreadableDocumentError) as refused:
        reader.parse_pdf(content, max_pages)
    return str(refused.value)


def test_pdf_is_read_page_by_page() -> None:
    parsed = read(TEA)
    assert parsed.text == "Tea is hot.\nVery hot.\n\nDrink it\nslowly."
    assert parsed.title == "About tea"
    assert parsed.pages == 2
    assert [(block.page, text) for block, text in zip(parsed.blocks, block_texts(parsed), strict=True)] == [
        (1, "Tea is hot.\nVery hot."),
        (2, "Drink it\nslowly."),
    ]


def test_pdf_page_without_text_is_counted() -> None:
    parsed = read(pdf("First", "", "Third"))
    assert [block.page for block in parsed.blocks] == [1, 3]
    assert parsed.pages == 3
    assert parsed.text == "First\n\nThird"


def test_pdf_without_title_has_none() -> None:
    assert not read(pdf("Tea")).title


def test_pdf_with_password_is_refused_with_a_reason() -> None:
    assert failure_reason(encrypted(TEA, "secret")) == "it is encrypted; take the password off first"


def test_encrypted_pdf_with_empty_password_is_read() -> None:
    assert read(encrypted(TEA, "")).text == read(TEA).text


def test_pdf_without_text_is_refused_with_a_reason() -> None:
    assert "OCR" in failure_reason(pdf("", ""))


def test_pdf_with_too_many_pages_is_refused_unread() -> None:
    assert failure_reason(pdf(*["Tea"] * 4), max_pages=3) == "it has 4 pages, more than 3"
    assert reader.parse_pdf(pdf(*["Tea"] * 3), 3).pages == 3


@pytest.mark.parametrize("content", [b"", b"%PDF-1.4\n", b"Not a PDF at all", TEA[:300], b"\0" * 500])
def test_broken_pdf_is_refused_with_a_reason(content: bytes) -> None:
    assert failure_reason(content).startswith("it is not a valid PDF") or "no text" in failure_reason(content)


def test_damaged_pdf_is_read_or_refused() -> None:
    chance = random.Random(7)
    for _ in range(150):
        damaged = bytearray(TEA)
        for _ in range(chance.randint(1, 12)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with suppress(UnreadableDocumentError):
            parse("tea.pdf", bytes(damaged))


def test_pdf_with_unsupported_cipher_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def decrypt(*_: object) -> None:
        raise DependencyError("cryptography>=3.1 is required for AES algorithm")

    monkeypatch.setattr(pypdf.PdfReader, "decrypt", decrypt)
    monkeypatch.setattr(reader, "find_spec", lambda name: None)
    assert (
        failure_reason(encrypted(TEA, "")) == "it is encrypted; take the password off, or pip install 'turnwire[pdf]'"
    )
