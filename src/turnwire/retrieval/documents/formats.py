"""Markdown: the file's own text, cut at its blocks. Only blocks are parsed, which is most of the speed."""

import io
import logging
import re
import zipfile
from functools import cache
from importlib.util import find_spec

from markdown_it import MarkdownIt

from turnwire.core.codec import clean_text
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.document import Block, Parsed

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)
_CLOSING = re.compile(r"[ \t]+#+[ \t]*$|[ \t]*\{#[^}]*\}[ \t]*$")
_MARKUP = re.compile(r"[`*]+|\[([^\]]*)\]\([^)]*\)")
_WHOLE = frozenset({"fence", "code_block", "html_block"})


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def parse_markdown(text: str) -> Parsed:
    matter = _FRONT_MATTER.match(text)
    skipped = matter.end() if matter else 0
    told = _TITLE.search(matter[1]) if matter else None
    title = told[1] if told else None
    starts = _line_starts(text, skipped)
    blocks: list[Block] = []
    tokens = _parser().parse(text[skipped:])
    for number, token in enumerate(tokens):
        # What is inside another block belongs to it; a closing token has no lines.
        if token.level or token.map is None or token.nesting < 0:
            continue
        start = starts[token.map[0]]
        if token.type == "heading_open":
            heading = _heading(tokens[number + 1].content)
            blocks.append(Block(start, int(token.tag[1]), heading))
            title = title or (heading if token.tag == "h1" else None)
        else:
            blocks.append(Block(start, whole=token.type in _WHOLE, rows=token.type == "table_open"))
    return Parsed(text, blocks, title)


def _heading(text: str) -> str:
    return _MARKUP.sub(r"\1", _CLOSING.sub("", text)).strip()


def _line_starts(text: str, skipped: int) -> list[int]:
    starts = [skipped]
    while (found := text.find("\n", starts[-1])) >= 0:
        starts.append(found + 1)
    return starts


# Plain text: paragraphs between blank lines.


_PARAGRAPH = re.compile(r"\S.*?(?=\n[ \t]*\n|\Z)", re.DOTALL)


def parse_plain(text: str) -> Parsed:
    return Parsed(text, paragraphs(text))


def paragraphs(text: str, start: int = 0, page: int | None = None) -> list[Block]:
    return [Block(start + found.start(), page=page) for found in _PARAGRAPH.finditer(text)]


# HTML: the content of the page, without its menus and forms.


_PERMALINK = "¶"
_SPACE = re.compile(r"\s+")


def parse_html(source: str) -> Parsed:
    # Imported here, because the tools take a tenth of a second to import, which the sandbox need not pay for a PDF.
    from turnwire.tools.html import CHROME, HIDDEN, read_blocks

    title, found = read_blocks(source, skip=HIDDEN | CHROME, cell_separator=" | ")
    in_main = any(block.in_main and block.text.strip() for block in found)
    texts: list[str] = []
    blocks: list[Block] = []
    offset = 0
    for block in found:
        text = block.text.replace(_PERMALINK, "")
        text = text.strip("\n") if block.preformatted else _SPACE.sub(" ", text).strip()
        if text.strip() and (block.in_main or not in_main):
            blocks.append(Block(offset, block.level, text if block.level else "", block.preformatted))
            texts.append(text)
            offset += len(text) + 2
    return Parsed("\n\n".join(texts), blocks, title or next((b.heading for b in blocks if b.level == 1), None))


# Word documents (extra `[office]`): paragraphs, headings and table rows.


_HEADING = re.compile(r"(?:Heading (\d)|Title)")
_MOST_UNPACKED = 200 * 1024 * 1024


def parse_docx(content: bytes) -> Parsed:
    """Raises UnreadableDocumentError."""
    try:
        from docx import Document
        from docx.table import Table
    except ImportError as error:
        raise UnreadableDocumentError("it needs an extra: pip install 'turnwire[office]'") from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MOST_UNPACKED:
                raise UnreadableDocumentError("it unpacks to more than 200 MB")
        document = Document(io.BytesIO(content))
        rows: list[tuple[str, int]] = []
        for part in document.iter_inner_content():
            if isinstance(part, Table):
                rows += [(" | ".join(cell.text for cell in row.cells), 0) for row in part.rows]
            else:
                style = _HEADING.match(part.style.name or "") if part.style else None
                rows.append((part.text, int(style[1] or 1) if style else 0))
        title = document.core_properties.title or None
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UnreadableDocumentError("it is not a sound Word document") from error
    texts: list[str] = []
    blocks: list[Block] = []
    offset = 0
    for raw, level in rows:
        text = clean_text(raw).strip()
        if text:
            blocks.append(Block(offset, min(level, 6), text if level else ""))
            texts.append(text)
            offset += len(text) + 2
    return Parsed("\n\n".join(texts), blocks, title)


# PDF: text page by page. pypdfium2 (extra `[pdf]`) does it twenty times faster; pypdf is always there.


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
