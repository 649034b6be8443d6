"""Markdown as Telegram shows it: text with entities, split into messages.

Entities need no escaping and cannot be unbalanced, so Telegram cannot refuse them. Markup that is not closed yet,
while an answer is being written, stays plain text. Raw HTML is text. Links lead to http, https and tg only.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Literal

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from msgspec import Struct, to_builtins

LIMIT = 4096
"""The length of a message, in UTF-16 units."""

EntityKind = Literal["bold", "italic", "strikethrough", "code", "pre", "text_link", "blockquote"]


class Entity(Struct, frozen=True, omit_defaults=True):
    """A formatted range of a text, counted in UTF-16 units."""

    type: EntityKind
    offset: int
    length: int
    url: str | None = None
    language: str | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length


class Formatted(Struct, frozen=True):
    """A text with its entities."""

    text: str = ""
    entities: tuple[Entity, ...] = ()

    @property
    def units(self) -> int:
        return utf16_length(self.text)

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()

    def plain_entities(self) -> list[dict[str, Any]]:
        return [to_builtins(entity) for entity in self.entities]

    def followed_by(self, other: "Formatted") -> "Formatted":
        shift = self.units
        moved = (_moved(entity, entity.offset + shift, entity.length) for entity in other.entities)
        return Formatted(self.text + other.text, (*self.entities, *moved))


def utf16_length(text: str) -> int:
    return len(text) + sum(char > "\uffff" for char in text)


def italic(text: str) -> Formatted:
    return Formatted(text, (Entity("italic", 0, utf16_length(text)),) if text else ())


def within(entities: Iterable[Entity], start: int, end: int) -> tuple[Entity, ...]:
    """Return the entities of a range of the text, clipped to it and counted from its start."""
    clipped: list[Entity] = []
    for entity in entities:
        first, last = max(entity.offset, start), min(entity.end, end)
        if first < last:
            clipped.append(_moved(entity, first - start, last - first))
    return tuple(clipped)


def _moved(entity: Entity, offset: int, length: int) -> Entity:
    return Entity(entity.type, offset, length, entity.url, entity.language)


_SCHEMES = ("http://", "https://", "tg://")
# Telegram allows nothing inside these, nor these inside a link.
_BARE: tuple[EntityKind, ...] = ("code", "pre")


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable(["table", "strikethrough"])
    # A paragraph must not turn into a heading because the next line begins with a dash.
    return parser.disable(["lheading", "html_block", "html_inline", "reference"])


def render(markdown: str) -> Formatted:
    writer = _Writer()
    writer.blocks(SyntaxTreeNode(_parser().parse(markdown)).children)
    return writer.written()


class _Writer:
    def __init__(self) -> None:
        self._parts: list[str] = []
        self._units = 0
        self._entities: list[Entity] = []
        self._kinds: list[EntityKind] = []

    def written(self) -> Formatted:
        text = "".join(self._parts)
        return Formatted(text, _unnested(sorted(self._entities, key=_outermost_first)))

    def _write(self, text: str) -> None:
        self._parts.append(text)
        self._units += utf16_length(text)

    def _marked(
        self, kind: EntityKind, write: Callable[[], None], *, url: str | None = None, language: str | None = None
    ) -> None:
        if kind in self._kinds or (kind in _BARE and "text_link" in self._kinds):
            write()
            return
        start = self._units
        self._kinds.append(kind)
        write()
        self._kinds.pop()
        if self._units > start:
            self._entities.append(Entity(kind, start, self._units - start, url, language))

    # Blocks

    def blocks(self, nodes: Sequence[SyntaxTreeNode], *, indent: str = "", gap: str = "\n\n") -> None:
        for number, node in enumerate(nodes):
            if number:
                self._write(gap)
                if indent and node.type not in ("bullet_list", "ordered_list"):
                    self._write(indent)
            self._block(node, indent)

    def _block(self, node: SyntaxTreeNode, indent: str) -> None:
        match node.type:
            case "heading":
                self._marked("bold", lambda: self._inlines(node.children))
            case "bullet_list" | "ordered_list":
                self._list(node, indent)
            case "blockquote":
                self._marked("blockquote", lambda: self.blocks(node.children))
            case "fence" | "code_block":
                self._code(node.content.rstrip("\n"), node.info.split()[0] if node.info.split() else None)
            case "table":
                self._code(_aligned(_cells(node)), None)
            case "hr":
                self._write("———")
            case _ if node.children:
                self._inlines(node.children)
            case _:
                self._write(node.content)

    def _list(self, node: SyntaxTreeNode, indent: str) -> None:
        first = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else 0
        for number, item in enumerate(node.children):
            if number:
                self._write("\n")
            bullet = f"{first + number}. " if node.type == "ordered_list" else "• "
            self._write(indent + bullet)
            self.blocks(item.children, indent=indent + "    ", gap="\n")

    def _code(self, code: str, language: str | None) -> None:
        self._marked("pre", lambda: self._write(code), language=language)

    # Inline

    def _inlines(self, nodes: Iterable[SyntaxTreeNode]) -> None:
        for node in nodes:
            self._inline(node)

    def _inline(self, node: SyntaxTreeNode) -> None:
        match node.type:
            case "text" | "text_special":
                self._write(node.content)
            case "softbreak" | "hardbreak":
                self._write("\n")
            case "strong":
                self._marked("bold", lambda: self._inlines(node.children))
            case "em":
                self._marked("italic", lambda: self._inlines(node.children))
            case "s":
                self._marked("strikethrough", lambda: self._inlines(node.children))
            case "code_inline":
                self._marked("code", lambda: self._write(node.content))
            case "link":
                self._link(str(node.attrs.get("href", "")), lambda: self._inlines(node.children))
            case "image":
                url = str(node.attrs.get("src", ""))
                self._link(url, lambda: self._write(node.content or url))
            case _ if node.children:
                self._inlines(node.children)
            case _:
                self._write(node.content)

    def _link(self, url: str, write: Callable[[], None]) -> None:
        if url.casefold().startswith(_SCHEMES):
            self._marked("text_link", write, url=url)
        else:
            write()


def _unnested(entities: Sequence[Entity]) -> tuple[Entity, ...]:
    """Cut bold and the like where they contain code: Telegram allows no entity around it but a quotation."""
    bare = [entity for entity in entities if entity.type in _BARE]
    pieces: list[Entity] = []
    for entity in entities:
        if entity.type in _BARE or entity.type == "blockquote":
            pieces.append(entity)
            continue
        start = entity.offset
        for hole in (hole for hole in bare if entity.offset <= hole.offset and hole.end <= entity.end):
            if start < hole.offset:
                pieces.append(Entity(entity.type, start, hole.offset - start, entity.url))
            start = hole.end
        if start < entity.end:
            pieces.append(Entity(entity.type, start, entity.end - start, entity.url))
    return tuple(sorted(pieces, key=_outermost_first))


def _outermost_first(entity: Entity) -> tuple[int, int, bool]:
    # A quotation may cover the same range as the code in it, and is always outside.
    return entity.offset, -entity.length, entity.type != "blockquote"


# Tables


def _cells(table: SyntaxTreeNode) -> list[list[str]]:
    rows = [row for part in table.children for row in part.children]
    return [[_inline_text(cell) for cell in row.children] for row in rows]


def _inline_text(node: SyntaxTreeNode) -> str:
    writer = _Writer()
    writer.blocks(node.children)
    return writer.written().text.replace("\n", " ")


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = [" │ ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "─┼─".join("─" * width for width in widths)
    return "\n".join(line.rstrip() for line in (lines[0], rule, *lines[1:]))


def _width(text: str) -> int:
    """Return the number of columns: letters of East Asian scripts and most emoji take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


# Splitting


_SENTENCE = re.compile(r"[.!?…。！？][\"')\]»”]*\s+")
_BREAKS = (re.compile(r"\n\n+"), re.compile(r"\n+"), _SENTENCE, re.compile(r"\s+"))
# The least fill of a message for the sake of a better break.
_MIN_FILL = 0.5


def split(formatted: Formatted, limit: int = LIMIT) -> list[Formatted]:
    """Split the text into pieces of at most `limit` UTF-16 units. `limit` must be at least 2."""
    text = formatted.text
    # units[i] is the UTF-16 offset of the i-th character.
    units = list(accumulate((1 + (char > "\uffff") for char in text), initial=0))
    pieces: list[Formatted] = []
    start = 0
    while units[-1] - units[start] > limit:
        last = bisect_right(units, units[start] + limit) - 1
        end = _cut(text, start, last, units, formatted.entities)
        pieces.append(_piece(formatted, start, end, units))
        start = end
    pieces.append(_piece(formatted, start, len(text), units))
    return pieces


def messages(formatted: Formatted) -> list[Formatted]:
    """Split the text into trimmed messages: Telegram trims them itself, and refuses blank ones."""
    return [_trimmed(piece) for piece in split(formatted) if not piece.is_blank]


def _trimmed(piece: Formatted) -> Formatted:
    text = piece.text
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if any(entity.offset < start for entity in piece.entities):
        # The indent of the first line of a code block stays.
        start = 0
    return Formatted(text[start:end], within(piece.entities, utf16_length(text[:start]), utf16_length(text[:end])))


def _piece(formatted: Formatted, start: int, end: int, units: list[int]) -> Formatted:
    return Formatted(formatted.text[start:end], within(formatted.entities, units[start], units[end]))


def _cut(text: str, start: int, last: int, units: list[int], entities: tuple[Entity, ...]) -> int:
    """Return the start of the next piece: after `start`, at most `last`."""
    first = start + max(1, int((last - start) * _MIN_FILL))
    code = next((entity for entity in entities if entity.type == "pre" and _holds(entity, units[last])), None)
    if code is None:
        return _last_break(text, first, last, _BREAKS) or _between_letters(text, start, last)
    # A code block that does not fit goes to the next message as a whole, unless this one would be too empty.
    before = bisect_right(units, code.offset) - 1
    if before >= first:
        return before
    return _last_break(text, first, last, _BREAKS[1:2]) or _between_letters(text, start, last)


def _holds(entity: Entity, unit: int) -> bool:
    return entity.offset < unit < entity.end


def _last_break(text: str, first: int, last: int, breaks: tuple[re.Pattern[str], ...]) -> int | None:
    for pattern in breaks:
        # The white space goes with the piece before it, as far as it fits.
        ends = [min(match.end(), last) for match in pattern.finditer(text, first, last) if match.end() > first]
        if ends:
            return ends[-1]
    return None


def _between_letters(text: str, start: int, last: int) -> int:
    """Return a break that is not between a letter and its accent, or inside an emoji of several characters."""
    for end in range(last, max(start, last - 16), -1):
        joined = text[end - 1] == "\u200d" or text[end] == "\u200d" or "\ufe00" <= text[end] <= "\ufe0f"
        if not joined and not unicodedata.combining(text[end]) and not "\U0001f3fb" <= text[end] <= "\U0001f3ff":
            return end
    return last


def escaped(text: str) -> str:
    """Return the text on one line, with Markdown characters escaped."""
    return "".join(f"\\{char}" if char in "\\`*_~[]<>#|!" else char for char in " ".join(text.split()))
