"""Blocks: the parts of a passage that can be quoted as an answer, with the text to show.

A block is a paragraph, a list, a table or a piece of code, together with the line that announces it. What is too long
to be read at a glance is split: a paragraph between sentences, a list between items, a table between rows. Headings,
rules, questions, lists of links, tables of contents and columns of figures are no blocks, because they answer nothing.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import dedent
from typing import Literal

from msgspec import Struct, structs

from turnwire.core.sentences import sentence_spans
from turnwire.retrieval.citations import MARKER

Kind = Literal["text", "list", "table", "code"]

MAX_BLOCK = 800
_MAX_PART = 240
_MAX_CODE = 1_500
_MAX_LEAD_IN = 400
_MAX_WIDENED = 600

_LINE = re.compile(r"[^\n]*(?:\n|\Z)")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}(?:[ \t]|$)")
_UNDERLINE = re.compile(r"[ \t]{0,3}(?:=+|-{2,})[ \t]*$")
_ITEM = re.compile(r"[ \t]{0,3}(?:[-*+•]|\d{1,3}[.)])[ \t]+\S")
_TABLE_RULE = re.compile(r"\|?[\s:|-]*-[\s:|-]*$")
_SPACE = re.compile(r"\s+")
_ITEM_MARK = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+")
_QUOTE_MARK = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
# Bounded, because a hostile text could have thousands of marks without a second one.
_HTML_OR_CODE = re.compile(
    r"((?<!`)(`+)(?!`).{1,2000}?(?<!`)\2(?!`))|<(https?://[^<>\s\[\]()`]+)>|<!--.*?-->|</?[a-zA-Z][^<>\n]*>", re.DOTALL
)
_MARKER_OR_CODE = re.compile(rf"(`[^`]+`)|\s?{MARKER}")
_LETTER = re.compile(r"[^\W_]")
_DIGIT = re.compile(r"\d")
_MAX_DIGITS = 0.2
_CELL = re.compile(r"(?<!\\)\|")
_LINK_CELL = re.compile(r"\|\s*!?\[[^\]\n]*\]\([^)\n]*\)[^|]*\|")
_TERM = re.compile(r"\|\s*\*\*[^*|]+\*\*\s*\|")


class TextBlock(Struct, frozen=True):
    """A part of a passage, from `start` to `end`. `text` is Markdown; `has_code` is True if a fence is in it."""

    kind: Kind
    start: int
    end: int
    text: str
    parts: tuple[str, ...]
    """Its sentences, items or rows, short ones joined: what is compared with a question by meaning."""

    @property
    def has_code(self) -> bool:
        return "```" in self.text

    @property
    def has_announced_code(self) -> bool:
        """True if a sentence that ends with a colon stands before the code."""
        return self.text.partition("```")[0].rstrip().endswith(":")


class _Span(Struct, frozen=True):
    """A run of lines of one kind."""

    kind: Kind
    start: int
    end: int


def split_blocks(text: str) -> list[TextBlock]:
    """Return the blocks of a passage in order. A block with its announcing line may overlap that line alone."""
    blocks: list[TextBlock] = []
    previous: TextBlock | None = None
    for span in _spans(text):
        pieces = list(_split(text, span))
        if previous is not None and span.kind != "text" and len(pieces) == 1:
            joined = _joined(previous, pieces[0])
            if blocks and blocks[-1] is previous and previous.text.endswith(":"):
                blocks.pop()
            pieces = [joined]
        blocks += pieces
        last = pieces[-1] if pieces else None
        previous = last if last is not None and _can_announce(last) else None
    return blocks


def widened(text: str, block: TextBlock) -> TextBlock:
    """Return a block with the paragraphs and lists directly after and before it, as far as they fit.

    A paragraph alone is often half of an answer: its neighbour has the condition, the exception or the list.
    """
    if not _can_be_widened(block):
        return block
    neighbours = [other for other in split_blocks(text) if _can_be_widened(other) and not other.has_code]
    is_growing = True
    while is_growing:
        is_growing = False
        for other in neighbours:
            if (larger := _united(text, block, other)) is not None:
                block, is_growing = larger, True
                break
    return block


def _can_be_widened(block: TextBlock) -> bool:
    # The items of a long list and the rows of a table are read one by one.
    return block.kind in ("text", "code") or (block.kind == "list" and len(block.parts) > 1)


def _united(text: str, block: TextBlock, other: TextBlock) -> TextBlock | None:
    """Return both as one block; None if they are not adjacent or together too long."""
    if other.start <= block.start and other.end >= block.end and other.text.startswith(block.text):
        first, second, shown = other, None, other.text  # A list with the block as the sentence before it.
    else:
        first, second = (block, other) if block.end <= other.start else (other, block)
        shown = f"{first.text}\n\n{second.text}"
    if first.text.endswith("[") or (other is second and shown.endswith(":")):
        return None  # A bracket could become a citation marker; a colon announces something that is not quoted.
    is_new = shown != block.text and len(shown) <= _MAX_WIDENED
    if not is_new or (second is not None and (first.end > second.start or text[first.end : second.start].strip())):
        return None
    parts = first.parts if second is None else (*first.parts, *second.parts)
    return TextBlock(block.kind, first.start, (second or first).end, shown, parts)


def _can_announce(block: TextBlock) -> bool:
    # An open bracket could become a citation marker with what follows.
    return block.kind == "text" and len(block.text) <= _MAX_LEAD_IN and not block.text.endswith("[")


def _joined(lead_in: TextBlock, block: TextBlock) -> TextBlock:
    text = f"{lead_in.text}\n\n{block.text}"
    return structs.replace(block, start=lead_in.start, text=text, parts=(*lead_in.parts, *block.parts))


def _spans(text: str) -> Iterator[_Span]:
    """Yield the runs of lines that belong together, without headings and rules."""
    kind: Kind | None = None
    start = end = 0
    fence = ""
    for match in _LINE.finditer(text):
        line = match[0].rstrip()
        if fence:
            end = match.end()
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                yield _Span("code", start, end)
                kind, fence = None, ""
            continue
        opening = _FENCE.match(line)
        new_kind = _kind_of(line, kind)
        if kind == "text" and new_kind == "text" and _UNDERLINE.match(line):
            kind = None  # The lines before it were a heading.
            continue
        if opening or new_kind != kind:
            if kind is not None:
                yield _Span(kind, start, end)
            kind, start = new_kind, match.start()
        if opening:
            kind, start, fence = "code", match.start(), opening[1]
        end = match.end()
    if kind is not None or fence:
        yield _Span("code" if fence else kind or "text", start, len(text))


def _kind_of(line: str, current: Kind | None) -> Kind | None:
    """Return the kind of a line after lines of the `current` kind; None for one between two blocks."""
    if not line.strip() or _HEADING.match(line):
        return "list" if current == "list" and not line else None
    if line.lstrip().startswith("|"):
        return "table"
    if _ITEM.match(line):
        return "list"
    if current == "list" and line.startswith((" ", "\t")):
        return "list"
    # A line without an indent ends a list, although Markdown would let it continue the item directly above.
    return "text"


def _split(text: str, span: _Span) -> Iterator[TextBlock]:
    raw = text[span.start : span.end]
    match span.kind:
        case "code":
            if raw.count("\n") > 1 and len(raw) <= _MAX_CODE:
                shown = dedent(raw).strip("\n")
                yield _block("code", text, span.start, span.end, shown, [shown])
        case "table":
            yield from _table_blocks(text, span)
        case "list":
            yield from _list_blocks(text, span)
        case "text":
            yield from _text_blocks(text, span.start, span.end)


def _text_blocks(text: str, start: int, end: int) -> Iterator[TextBlock]:
    raw = text[start:end]
    spans = sentence_spans(raw)
    for first, last in _grouped(spans, MAX_BLOCK):
        shown = plain_line(raw[first:last])
        if _is_statement(shown, raw[first:last]):
            inside = [span for span in spans if first <= span[0] < last]
            parts = [plain_line(raw[slice(*group)]) for group in _grouped(inside, _MAX_PART)]
            yield _block("text", text, start + first, start + last, shown, parts)


def _grouped(spans: list[tuple[int, int]], max_length: int) -> list[tuple[int, int]]:
    """Join neighbouring spans as long as they are together not longer than `max_length`."""
    groups: list[tuple[int, int]] = []
    for span in spans:
        if groups and span[1] - groups[-1][0] <= max_length:
            groups[-1] = groups[-1][0], span[1]
        else:
            groups.append(span)
    return groups


def _list_blocks(text: str, span: _Span) -> Iterator[TextBlock]:
    raw = text[span.start : span.end]
    borders = [match.start() for match in _LINE.finditer(raw) if _ITEM.match(match[0])] or [0]
    items = [(first, last) for first, last in pairwise([*borders, len(raw)])]
    shown = [(first, last, _item_text(raw[first:last])) for first, last in items]
    shown = [(first, last, item) for first, last, item in shown if _is_statement(item, raw[first:last])]
    if not shown:
        return
    if sum(len(item) for _, _, item in shown) <= MAX_BLOCK and len(shown) == len(items):
        marks = [_ITEM_MARK.match(raw[first:last]) for first, last, _ in shown]
        lines = [f"{mark[0].strip() if mark else '-'} {item}" for mark, (_, _, item) in zip(marks, shown, strict=True)]
        yield _block("list", text, span.start, span.end, "\n".join(lines), [item for _, _, item in shown])
        return
    for first, last, item in shown:
        yield _block("list", text, span.start + first, span.start + last, item, [item])


def _item_text(raw: str) -> str:
    return plain_line(_ITEM_MARK.sub("", raw))


def _table_blocks(text: str, span: _Span) -> Iterator[TextBlock]:
    rows = [
        (span.start + match.start(), span.start + match.end(), match[0].strip())
        for match in _LINE.finditer(text[span.start : span.end])
        if match[0].strip()
    ]
    header: list[str] = []
    if len(rows) > 1 and _TABLE_RULE.fullmatch(rows[1][2]):
        header, rows = _cells(rows[0][2]), rows[2:]
    rows = [row for row in rows if not _TABLE_RULE.fullmatch(row[2])]
    if len(rows) > 1 and all(_LINK_CELL.match(row) for _, _, row in rows):
        return  # A table of contents.
    shown = [(first, last, [plain_line(cell) for cell in _cells(row)]) for first, last, row in rows]
    shown = [row for row in shown if _LETTER.search("".join(row[2]))]
    text_of_rows = "".join(cell for _, _, cells in shown for cell in cells)
    if not shown or len(_DIGIT.findall(text_of_rows)) >= _MAX_DIGITS * len(text_of_rows):
        return
    width = max(len(cells) for _, _, cells in shown)
    # In a glossary every row answers another question.
    is_glossary = len(rows) > 1 and all(_TERM.match(row) for _, _, row in rows)
    columns = [plain_line(cell) for cell in header] + [""] * (width - len(header))
    lines = [_row_text(cells) for _, _, cells in shown]
    if sum(map(len, lines)) <= MAX_BLOCK and not is_glossary:
        rows_text = "\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0]
        table = rows_text if width <= 2 else _table_text(columns, [cells for _, _, cells in shown])
        yield _block("table", text, shown[0][0], shown[-1][1], table, lines)
        return
    for (first, last, cells), line in zip(shown, lines, strict=True):
        yield _block("table", text, first, last, line if width <= 2 else _table_text(columns, [cells]), [line])


def _row_text(cells: list[str]) -> str:
    return ": ".join(cell for cell in cells if cell)


def _table_text(columns: list[str], rows: list[list[str]]) -> str:
    rule = ["---"] * len(columns)
    padded = [[*cells, *[""] * (len(columns) - len(cells))] for cells in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *padded))


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in _CELL.split(row.strip().strip("|"))]


def _block(kind: Kind, text: str, start: int, end: int, shown: str, parts: Sequence[str]) -> TextBlock:
    raw = text[start:end]
    stripped = raw.strip()
    first = start + raw.index(stripped[0])
    return TextBlock(kind, first, first + len(stripped), shown, tuple(parts))


def plain_line(raw: str) -> str:
    """Return a text as one line, without links, tags and citation markers of its source."""
    text = _without_tags(_QUOTE_MARK.sub("", raw)) if "<" in raw or ">" in raw else raw
    return _SPACE.sub(" ", _without_markers(_LINK.sub(r"\1", _SPACE.sub(" ", text)))).strip()


def _without_tags(text: str) -> str:
    """Return a text without HTML tags and comments, except in code. An address in angle brackets stays."""
    return _HTML_OR_CODE.sub(lambda match: match[1] or match[3] or "", text)


def _without_markers(text: str) -> str:
    """Return a text without citation markers, except in code."""
    bare = _MARKER_OR_CODE.sub(lambda match: match[1] or "", text)
    if _LINK.search(bare) or any(match[1] is None for match in _MARKER_OR_CODE.finditer(bare)):
        # Only a forged text nests one marker in another.
        return bare.replace("[", "(").replace("]", ")")
    return bare


def _is_statement(shown: str, raw: str) -> bool:
    """Return False for a text that cannot answer: without a word, only a question, or only links."""
    if not _LETTER.search(shown):
        return False
    if shown.endswith(("?", "？")) and len(sentence_spans(shown)) == 1:
        return False
    return bool(_LETTER.search(_LINK.sub("", _SPACE.sub(" ", raw))))
