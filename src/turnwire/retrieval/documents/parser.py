"""Format detection, decoding and parsing: the bytes of a file as a parsed document."""

import codecs
from collections.abc import Callable
from pathlib import PurePath

from turnwire.core.codec import clean_text
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.document import ParsedDocument
from turnwire.retrieval.documents.formats import parse_docx, parse_html, parse_markdown, parse_pdf, parse_plain

MAX_PAGES = 5_000

_FORMATS = {
    "markdown": (".md", ".markdown", ".mdx"),
    "text": (".txt", ".text", ".rst", ".adoc", ".org"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "docx": (".docx",),
}
SUFFIXES = {suffix: name for name, suffixes in _FORMATS.items() for suffix in suffixes}
_TEXT_PARSERS: dict[str, Callable[[str], ParsedDocument]] = {
    "markdown": parse_markdown,
    "text": parse_plain,
    "html": parse_html,
}


def format_of(name: str) -> str | None:
    """Return the format of a file with this name, or None if it is not supported."""
    return SUFFIXES.get(PurePath(name).suffix.lower())


def parse(name: str, content: bytes) -> ParsedDocument:
    """Parse a file. Raise UnreadableDocumentError, which says what is wrong with it."""
    format_name = format_of(name)
    if format_name is None:
        raise UnreadableDocumentError(f"its format is not known; known are {' '.join(sorted(SUFFIXES))}")
    try:
        parsed = _parse(format_name, content)
    except (UnreadableDocumentError, MemoryError):
        raise
    except Exception as error:
        # A library may raise anything for a broken file, and one file must not end the indexing of all others.
        raise UnreadableDocumentError(f"its reader stumbled over it ({type(error).__name__})") from error
    if not parsed.blocks:
        raise UnreadableDocumentError("there is no text in it")
    return parsed


def _parse(format_name: str, content: bytes) -> ParsedDocument:
    match format_name:
        case "pdf":
            return parse_pdf(content, MAX_PAGES)
        case "docx":
            return parse_docx(content)
        case _:
            return _TEXT_PARSERS[format_name](_decode(content))


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
