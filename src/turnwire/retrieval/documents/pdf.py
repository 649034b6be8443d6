"""PDF: text page by page. pypdfium2 (extra `[pdf]`) does it twenty times faster; pypdf is always there."""

import io
import logging
from importlib.util import find_spec

from turnwire.core.encoding import clean_text
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.parsed import Block, Parsed
from turnwire.retrieval.documents.plain import paragraphs


def parse_pdf(content: bytes, max_pages: int) -> Parsed:
    """Raises UnreadableDocumentError."""
    title, pages = (_by_pdfium if find_spec("pypdfium2") else _by_pypdf)(content, max_pages)
    if not any(page.strip() for page in pages):
        raise UnreadableDocumentError("it has no text, only pictures of it; run it through OCR first")
    texts: list[str] = []
    blocks: list[Block] = []
    offset = 0
    for number, raw in enumerate(pages, start=1):
        page = clean_text(raw.replace("\r\n", "\n").replace("\r", "\n")).strip()
        if page:
            blocks += paragraphs(page, offset, number)
            texts.append(page)
            offset += len(page) + 2
    return Parsed("\n\n".join(texts), blocks, title, len(pages))


def _by_pypdf(content: bytes, max_pages: int) -> tuple[str | None, list[str]]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    # It warns about every oddity of a file; what matters ends up as an error.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableDocumentError("it is encrypted; take the password off first")
        _check_pages(len(reader.pages), max_pages)
        title = reader.metadata.title if reader.metadata else None
        return title, [page.extract_text() for page in reader.pages]
    except UnreadableDocumentError:
        raise
    except DependencyError as error:
        raise UnreadableDocumentError(
            "it is encrypted; take the password off, or pip install 'turnwire[pdf]'"
        ) from error
    except (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UnreadableDocumentError(f"it is not a sound PDF ({type(error).__name__})") from error


def _by_pdfium(content: bytes, max_pages: int) -> tuple[str | None, list[str]]:
    import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        why = "it is encrypted; take the password off first" if encrypted else "it is not a sound PDF"
        raise UnreadableDocumentError(why) from error
    try:
        _check_pages(len(document), max_pages)
        pages: list[str] = []
        for page in document:
            text = page.get_textpage()
            pages.append(text.get_text_bounded())  # pyright: ignore[reportUnknownMemberType]
            text.close()
            page.close()
        return document.get_metadata_dict().get("Title"), pages
    except pypdfium2.PdfiumError as error:
        raise UnreadableDocumentError("it is not a sound PDF") from error
    finally:
        document.close()


def _check_pages(count: int, most: int) -> None:
    if count > most:
        raise UnreadableDocumentError(f"it has {count:,} pages, more than {most:,}")
