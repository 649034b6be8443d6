"""The parser: the bytes of a file of any supported format as a parsed document."""

import codecs
import io
import logging
import re
import zipfile
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import PurePath

from markdown_it import MarkdownIt
from msgspec import structs

from turnwire.core.errors import UnreadableDocumentError
from turnwire.core.log.codec import clean_text
from turnwire.retrieval.documents.document import Block, ParsedDocument

MAX_PAGES = 5_000
# Every event about a document has its title, and every passage is indexed with it.
_MAX_TITLE = 200

_FORMATS = {
    "markdown": (".md", ".markdown", ".mdx"),
    "text": (".txt", ".text", ".rst", ".adoc", ".org"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "docx": (".docx",),
}
SUFFIXES = {suffix: name for name, suffixes in _FORMATS.items() for suffix in suffixes}


def format_of(name: str) -> str | None:
    """Return the format of a file with this name, or None if it is not supported."""
    return SUFFIXES.get(PurePath(name).suffix.lower())


def parse(name: str, content: bytes) -> ParsedDocument:
    """Parse a file. Raise UnreadableDocumentError, which says what is wrong with it."""
    format_name = format_of(name)
    if format_name is None:
        raise UnreadableDocumentError(f"its format can't be read. Supported: {' '.join(sorted(SUFFIXES))}")
    try:
        parsed = _parse(format_name, content)
    except (UnreadableDocumentError, MemoryError):
        raise
    except Exception as error:
        # A library may raise anything for a broken file, and one file must not end the indexing of all others.
        raise UnreadableDocumentError(f"it cannot be parsed ({type(error).__name__})") from error
    if not parsed.blocks:
        raise UnreadableDocumentError("there is no text in it")
    return structs.replace(parsed, title=_one_line(parsed.title or "", _MAX_TITLE) or None)


def _parse(format_name: str, content: bytes) -> ParsedDocument:
    match format_name:
        case "pdf":
            return parse_pdf(content, MAX_PAGES)
        case "docx":
            return parse_docx(content)
        case "html":
            return parse_html(_decode(content))
        case "markdown":
            return parse_markdown(_decode(content))
        case _:
            return parse_plain(_decode(content))


def _one_line(text: str, max_length: int) -> str:
    return " ".join(clean_text(text).split())[:max_length].rstrip()


def _decode(content: bytes) -> str:
    # UTF-16 is recognised by its byte order mark, before the check for NUL bytes, which no other text has.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = content.decode("utf-16", "replace")
    elif b"\0" in content:
        raise UnreadableDocumentError("it is not text, whatever its name says")
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252", "replace")
    # The log removes the same characters, so that an offset means the same in both.
    return clean_text(text.replace("\r\n", "\n").replace("\r", "\n"))


_BLOCK_BREAK = "\n\n"

# Markdown: the file's own text, with a block for each top-level element.

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_FRONT_MATTER_TITLE = re.compile(r"^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)
_HEADING_END = re.compile(r"[ \t]+#+[ \t]*$|[ \t]*\{#[^}]*\}[ \t]*$")
_INLINE_MARKUP = re.compile(r"[`*]+|\[([^\]]*)\]\([^)]*\)")
_WHOLE_TOKENS = frozenset({"fence", "code_block", "html_block"})


def parse_markdown(text: str) -> ParsedDocument:
    matter = _FRONT_MATTER.match(text)
    skipped = matter.end() if matter else 0
    declared = _FRONT_MATTER_TITLE.search(matter[1]) if matter else None
    title = declared[1] if declared else None
    starts = _line_starts(text, skipped)
    blocks: list[Block] = []
    tokens = _markdown_parser().parse(text[skipped:])
    for number, token in enumerate(tokens):
        # Nested tokens belong to their block; closing tokens have no lines.
        if token.level or token.map is None or token.nesting < 0:
            continue
        start = starts[token.map[0]]
        if token.type == "heading_open":
            heading = _markdown_heading(tokens[number + 1].content)
            blocks.append(Block(start, int(token.tag[1]), heading))
            title = title or (heading if token.tag == "h1" else None)
        else:
            blocks.append(Block(start, whole=token.type in _WHOLE_TOKENS, rows=token.type == "table_open"))
    return ParsedDocument(text, blocks, title)


@cache
def _markdown_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    # Inline markup is not needed, and takes most of the time.
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _markdown_heading(text: str) -> str:
    return _INLINE_MARKUP.sub(r"\1", _HEADING_END.sub("", text)).strip()


def _line_starts(text: str, skipped: int) -> list[int]:
    starts = [skipped]
    while (newline := text.find("\n", starts[-1])) >= 0:
        starts.append(newline + 1)
    return starts


# Plain text: paragraphs between blank lines.

_PARAGRAPH = re.compile(r"\S.*?(?=\n[ \t]*\n|\Z)", re.DOTALL)


def parse_plain(text: str) -> ParsedDocument:
    return ParsedDocument(text, paragraphs(text))


def paragraphs(text: str, start: int = 0, page: int | None = None) -> list[Block]:
    return [Block(start + match.start(), page=page) for match in _PARAGRAPH.finditer(text)]


# HTML: the content of the page, without its menus and forms. Headings, list items and code are written as Markdown, so
# that whoever reads a passage, a person or a model, sees what they are.

_PERMALINK = "¶"
_BACKTICKS = re.compile("`+")
_SPACE = re.compile(r"\s+")


def parse_html(source: str) -> ParsedDocument:
    # Imported here, because the tools take a tenth of a second to import, which the sandbox need not pay for a PDF.
    from turnwire.tools.html import CHROME, HIDDEN, read_blocks

    title, page = read_blocks(source, skip=HIDDEN | CHROME, cell_separator=" | ")
    has_main = any(block.in_main and block.text.strip() for block in page)
    rows: list[tuple[str, Block]] = []
    for block in page:
        text = block.text.replace(_PERMALINK, "")
        text = _fenced(text) if block.preformatted else _SPACE.sub(" ", text).strip()
        if text and (block.in_main or not has_main):
            heading = text if block.level else ""
            mark = f"{'#' * block.level} " if heading else "- " if block.is_item and not block.preformatted else ""
            rows.append((mark + text, Block(0, block.level, heading, block.preformatted)))
    text, blocks = _joined(rows)
    return ParsedDocument(text, blocks, title or next((block.heading for block in blocks if block.level == 1), None))


def _fenced(text: str) -> str:
    text = text.strip("\n")
    if not text.strip():
        return ""
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"{fence}\n{text}\n{fence}"


# Word documents (extra `[office]`): paragraphs, headings and table rows.

_DOCX_HEADING = re.compile(r"(?:Heading (\d)|Title)")
_MAX_UNPACKED_BYTES = 200 * 1024 * 1024


def parse_docx(content: bytes) -> ParsedDocument:
    """Parse a Word document. Raise UnreadableDocumentError if it is broken, or python-docx is not installed."""
    try:
        from docx import Document
        from docx.table import Table
    except ImportError as error:
        raise UnreadableDocumentError("it needs an extra: pip install 'turnwire[office]'") from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MAX_UNPACKED_BYTES:
                raise UnreadableDocumentError("it unpacks to more than 200 MB")
        document = Document(io.BytesIO(content))
        rows: list[tuple[str, int]] = []
        for part in document.iter_inner_content():
            if isinstance(part, Table):
                rows += [(" | ".join(cell.text for cell in row.cells), 0) for row in part.rows]
            else:
                style = _DOCX_HEADING.match(part.style.name or "") if part.style else None
                rows.append((part.text, int(style[1] or 1) if style else 0))
        title = document.core_properties.title or None
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UnreadableDocumentError("it is not a valid Word document") from error
    cleaned = [(clean_text(raw).strip(), min(level, 6)) for raw, level in rows]
    text, blocks = _joined((text, Block(0, level, text if level else "")) for text, level in cleaned)
    return ParsedDocument(text, blocks, title)


def _joined(rows: Iterable[tuple[str, Block]]) -> tuple[str, list[Block]]:
    """Return the texts that are not blank as one, and their blocks with the starts they have in it."""
    texts: list[str] = []
    blocks: list[Block] = []
    offset = 0
    for text, block in rows:
        if text.strip():
            blocks.append(structs.replace(block, start=offset))
            texts.append(text)
            offset += len(text) + len(_BLOCK_BREAK)
    return _BLOCK_BREAK.join(texts), blocks


# PDF: text page by page. pypdfium2 (extra `[pdf]`) is twenty times faster than pypdf, which is always installed.


def parse_pdf(content: bytes, max_pages: int) -> ParsedDocument:
    """Parse a PDF. Raise UnreadableDocumentError if it is broken, encrypted, too long or has no text."""
    title, pages = (_read_with_pdfium if find_spec("pypdfium2") else _read_with_pypdf)(content, max_pages)
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
            offset += len(page) + len(_BLOCK_BREAK)
    return ParsedDocument(_BLOCK_BREAK.join(texts), blocks, title, len(pages))


def _read_with_pypdf(content: bytes, max_pages: int) -> tuple[str | None, list[str]]:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, PyPdfError

    # It warns about every oddity of a file; whatever matters ends up as an error.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableDocumentError("it is encrypted; take the password off first")
        _check_page_count(len(reader.pages), max_pages)
        title = reader.metadata.title if reader.metadata else None
        return title, [page.extract_text() for page in reader.pages]
    except UnreadableDocumentError:
        raise
    except DependencyError as error:
        raise UnreadableDocumentError(
            "it is encrypted; take the password off, or pip install 'turnwire[pdf]'"
        ) from error
    except (PyPdfError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UnreadableDocumentError(f"it is not a valid PDF ({type(error).__name__})") from error


def _read_with_pdfium(content: bytes, max_pages: int) -> tuple[str | None, list[str]]:
    import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        reason = "it is encrypted; take the password off first" if encrypted else "it is not a valid PDF"
        raise UnreadableDocumentError(reason) from error
    try:
        _check_page_count(len(document), max_pages)
        pages: list[str] = []
        for page in document:
            text = page.get_textpage()
            pages.append(text.get_text_bounded())  # pyright: ignore[reportUnknownMemberType]
            text.close()
            page.close()
        return document.get_metadata_dict().get("Title"), pages
    except pypdfium2.PdfiumError as error:
        raise UnreadableDocumentError("it is not a valid PDF") from error
    finally:
        document.close()


def _check_page_count(count: int, max_pages: int) -> None:
    if count > max_pages:
        raise UnreadableDocumentError(f"it has {count:,} pages, more than {max_pages:,}")
