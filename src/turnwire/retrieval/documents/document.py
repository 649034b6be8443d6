"""A document as text: what every format is read into."""

import re
from bisect import bisect_right
from collections.abc import Iterator

from msgspec import Struct

from turnwire.retrieval.sentences import sentence_starts


class Block(Struct, frozen=True, gc=False):
    """A paragraph, a heading, a list, a piece of code: from `start` to the next block's start.

    `level` is 1 to 6 for a heading. `whole` is for what makes no sense in pieces, `rows` for what
    may be cut between its lines only.
    """

    start: int
    level: int = 0
    heading: str = ""
    whole: bool = False
    rows: bool = False
    page: int | None = None


class Parsed(Struct, frozen=True):
    """Offsets everywhere count code points of `text`, which is kept as it stands here."""

    text: str
    blocks: list[Block]
    title: str | None = None
    pages: int | None = None


# Passages: a document cut into pieces of about a thousand characters, at the borders it has itself.


LONGEST = 1_200
# Even a whole block must fit into a prompt, and its event into the log.
_LONGEST_WHOLE = 6_000
# It is kept with every passage below it.
_LONGEST_HEADING = 200
_LINE = re.compile(r"\n")


class Chunk(Struct, frozen=True, gc=False):
    """`text` reaches up to the next chunk; `end` is where the last thing that is not blank ends."""

    text: str
    start: int
    end: int
    line_start: int
    line_end: int
    headings: tuple[str, ...] = ()
    page: int | None = None


def cut(parsed: Parsed) -> list[Chunk]:
    text = parsed.text
    lines = [found.start() for found in _LINE.finditer(text)]
    chunks: list[Chunk] = []
    # Blank space, however much, belongs to the passage before it.
    ranges = [one for number, one in enumerate(_ranges(parsed)) if not number or text[slice(*one[:2])].strip()]
    for number, (start, _, headings, page) in enumerate(ranges):
        piece = text[start : ranges[number + 1][0] if number + 1 < len(ranges) else len(text)]
        stop = start + len(piece.rstrip())
        first = min(start + len(piece) - len(piece.lstrip()), stop)
        chunks.append(
            Chunk(
                piece,
                start,
                stop,
                bisect_right(lines, first - 1) + 1,
                bisect_right(lines, stop - 1) + 1,
                headings,
                page,
            )
        )
    return chunks


def _ranges(parsed: Parsed) -> Iterator[tuple[int, int, tuple[str, ...], int | None]]:
    """Start, end, headings and page of each passage. The first begins at 0, the last ends with the text."""
    text, blocks = parsed.text, parsed.blocks
    path: list[tuple[int, str]] = []
    headings: tuple[str, ...] = ()
    start = 0
    page = blocks[0].page if blocks else None
    has_body = False
    for number, block in enumerate(blocks):
        stop = blocks[number + 1].start if number + 1 < len(blocks) else len(text)
        if block.level:
            # Headings with nothing between them go together, as far as there is room.
            if has_body or (start < block.start and stop - start > LONGEST):
                yield start, block.start, headings, page
                start, has_body = block.start, False
            path = [entry for entry in path if entry[0] < block.level]
            path.append((block.level, block.heading[:_LONGEST_HEADING]))
            headings = tuple(name for _, name in path)
            for border in _borders(text, block, start, stop):
                yield start, border, headings, page
                start = border
            continue
        if has_body and (block.page != page or stop - start > LONGEST):
            yield start, block.start, headings, page
            start = block.start
        page, has_body = block.page, True
        for border in _borders(text, block, start, stop):
            yield start, border, headings, page
            start = border
    if start < len(text):
        yield start, len(text), headings, page


def _borders(text: str, block: Block, start: int, stop: int) -> Iterator[int]:
    """Where a block that is too long is cut: before a line or a sentence; inside of one only if it never ends."""
    longest = _LONGEST_WHOLE if block.whole else LONGEST
    if stop - start <= longest:
        return
    begin, piece = block.start, text[block.start : stop]
    previous = start
    if block.whole or block.rows:
        # If it is only too long together with its heading, it goes without.
        previous = begin
        fits = block.whole and len(piece) <= longest
        ends = [] if fits else [begin + found.end() for found in _LINE.finditer(piece)]
    else:
        ends = [begin + offset for offset in sentence_starts(piece)]
    for end in [*ends, stop]:
        while end - start > longest:
            # As far as whole lines or sentences go; a single one that is too long is cut hard.
            border = previous if start < previous <= start + longest else start + longest
            yield border
            start, previous = border, max(previous, border)
        previous = end
