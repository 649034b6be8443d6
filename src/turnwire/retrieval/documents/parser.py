"""From the bytes of a file to its text: which format it is, and what it says."""

import codecs
from collections.abc import Callable
from pathlib import PurePath

from turnwire.core.codec import clean_text
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.document import Parsed
from turnwire.retrieval.documents.formats import parse_docx, parse_html, parse_markdown, parse_pdf, parse_plain

MOST_PAGES = 5_000

_FORMATS = {
    "markdown": (".md", ".markdown", ".mdx"),
    "text": (".txt", ".text", ".rst", ".adoc", ".org"),
    "html": (".html", ".htm", ".xhtml"),
    "pdf": (".pdf",),
    "docx": (".docx",),
}
SUFFIXES = {suffix: name for name, suffixes in _FORMATS.items() for suffix in suffixes}
_TEXT_PARSERS: dict[str, Callable[[str], Parsed]] = {
    "markdown": parse_markdown,
    "text": parse_plain,
    "html": parse_html,
}


def format_of(name: str) -> str | None:
    """The format of a file of this name, or None if it is none of ours."""
    return SUFFIXES.get(PurePath(name).suffix.lower())


def parse(name: str, content: bytes) -> Parsed:
    """Raises UnreadableDocumentError, which says what is wrong with the file."""
    kind = format_of(name)
    if kind is None:
        known = " ".join(sorted(SUFFIXES))
        raise UnreadableDocumentError(f"its format is not known; known are {known}")
    try:
        parsed = _parse(kind, content)
    except (UnreadableDocumentError, MemoryError):
        raise
    except Exception as error:
        # What a library makes of a broken file is anybody's guess; it must not end the reading of all others.
        raise UnreadableDocumentError(f"its reader stumbled over it ({type(error).__name__})") from error
    if not parsed.blocks:
        raise UnreadableDocumentError("there is no text in it")
    return parsed


def _parse(kind: str, content: bytes) -> Parsed:
    match kind:
        case "pdf":
            return parse_pdf(content, MOST_PAGES)
        case "docx":
            return parse_docx(content)
        case _:
            return _TEXT_PARSERS[kind](_decode(content))


def _decode(content: bytes) -> str:
    # UTF-16 is only known by its mark; it is full of NUL bytes, which nothing else that is text has.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = content.decode("utf-16", "replace")
    elif b"\0" in content:
        raise UnreadableDocumentError("it is not text, whatever its name says")
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("cp1252", "replace")
    # The log takes the same characters out, so that an offset means the same here and there.
    return clean_text(text.replace("\r\n", "\n").replace("\r", "\n"))
