"""Parsed documents, and the chunks they are split into."""

import re
from bisect import bisect_right
from collections.abc import Iterator

from msgspec import Struct

from turnwire.core.sentences import sentence_starts

MAX_CHUNK = 1_200
# An unsplittable block must still fit into a prompt, and its event into the log.
_MAX_WHOLE_BLOCK = 6_000
# Every chunk below a heading stores it again.
_MAX_HEADING = 200
_NEWLINE = re.compile(r"\n")


class Block(Struct, frozen=True, gc=False):
    """A paragraph, heading, list or piece of code, from `start` to the start of the next block.

    `level` is 1 to 6 for a heading. A `whole` block, such as code, makes no sense in pieces; one of `rows`, such as a
    table, may be split between its lines only.
    """

    start: int
    level: int = 0
    heading: str = ""
    whole: bool = False
    rows: bool = False
    page: int | None = None


class ParsedDocument(Struct, frozen=True):
    """A document as text and blocks. All offsets count code points of `text`."""

    text: str
    blocks: list[Block]
    title: str | None = None
    pages: int | None = None


class Chunk(Struct, frozen=True, gc=False):
    """A piece of a document. `text` reaches to the next chunk; `end` excludes trailing white space."""

    text: str
    start: int
    end: int
    line_start: int
    line_end: int
    headings: tuple[str, ...] = ()
    page: int | None = None


def split_document(parsed: ParsedDocument) -> list[Chunk]:
    """Split a document into chunks of about a thousand characters, at the borders of its blocks."""
    text = parsed.text
    newlines = [match.start() for match in _NEWLINE.finditer(text)]
    # A blank range belongs to the chunk before it.
    ranges = [item for number, item in enumerate(_ranges(parsed)) if not number or text[slice(*item[:2])].strip()]
    chunks: list[Chunk] = []
    for number, (start, _, headings, page) in enumerate(ranges):
        piece = text[start : ranges[number + 1][0] if number + 1 < len(ranges) else len(text)]
        end = start + len(piece.rstrip())
        first = min(start + len(piece) - len(piece.lstrip()), end)
        line_start = bisect_right(newlines, first - 1) + 1
        line_end = bisect_right(newlines, end - 1) + 1
        chunks.append(Chunk(piece, start, end, line_start, line_end, headings, page))
    return chunks


def _ranges(parsed: ParsedDocument) -> Iterator[tuple[int, int, tuple[str, ...], int | None]]:
    """Yield start, end, headings and page of each chunk. The ranges cover the whole text without gaps."""
    text, blocks = parsed.text, parsed.blocks
    path: list[tuple[int, str]] = []
    headings: tuple[str, ...] = ()
    start = 0
    page = blocks[0].page if blocks else None
    has_body = False
    for number, block in enumerate(blocks):
        stop = blocks[number + 1].start if number + 1 < len(blocks) else len(text)
        if block.level:
            # Consecutive headings share a chunk as long as they fit.
            if has_body or (start < block.start and stop - start > MAX_CHUNK):
                yield start, block.start, headings, page
                start, has_body = block.start, False
            path = [entry for entry in path if entry[0] < block.level]
            path.append((block.level, block.heading[:_MAX_HEADING]))
            headings = tuple(name for _, name in path)
        else:
            if has_body and (block.page != page or stop - start > MAX_CHUNK):
                yield start, block.start, headings, page
                start = block.start
            page, has_body = block.page, True
        for border in _borders(text, block, start, stop):
            yield start, border, headings, page
            start = border
    if start < len(text):
        yield start, len(text), headings, page


def _borders(text: str, block: Block, start: int, stop: int) -> Iterator[int]:
    """Yield the offsets at which a block that is too long is split.

    These are starts of lines or sentences; a single line or sentence that is too long is split anywhere.
    """
    max_length = _MAX_WHOLE_BLOCK if block.whole else MAX_CHUNK
    if stop - start <= max_length:
        return
    begin, piece = block.start, text[block.start : stop]
    previous = start
    if block.whole or block.rows:
        # A block that is too long only together with its heading goes into a chunk without it.
        previous = begin
        fits = block.whole and len(piece) <= max_length
        ends = [] if fits else [begin + match.end() for match in _NEWLINE.finditer(piece)]
    else:
        ends = [begin + offset for offset in sentence_starts(piece)]
    for end in [*ends, stop]:
        while end - start > max_length:
            border = previous if start < previous <= start + max_length else start + max_length
            yield border
            start, previous = border, max(previous, border)
        previous = end
