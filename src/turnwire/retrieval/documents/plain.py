"""Plain text: paragraphs between blank lines."""

import re

from turnwire.retrieval.documents.parsed import Block, Parsed

_PARAGRAPH = re.compile(r"\S.*?(?=\n[ \t]*\n|\Z)", re.DOTALL)


def parse_plain(text: str) -> Parsed:
    return Parsed(text, paragraphs(text))


def paragraphs(text: str, start: int = 0, page: int | None = None) -> list[Block]:
    return [Block(start + found.start(), page=page) for found in _PARAGRAPH.finditer(text)]
