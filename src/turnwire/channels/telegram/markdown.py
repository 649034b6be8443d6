"""Markdown as text with entities.

Nothing is escaped and nothing can be unbalanced, so Telegram cannot refuse it. What has not been closed yet, while an
answer is being written, stays as it was typed. Raw HTML is text. Links lead to http, https and tg only.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from turnwire.channels.telegram.formatted import Entity, EntityKind, Formatted, utf16_length

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
        # By nesting: what begins first, and of those the longest, stands outside.
        order = sorted(self._entities, key=lambda entity: (entity.offset, -entity.length))
        return Formatted(text, _unnested(order))

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
            mark = f"{first + number}. " if node.type == "ordered_list" else "• "
            self._write(indent + mark)
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
    """Cuts bold and the like where code stands in them: Telegram allows no entity around it."""
    bare = [entity for entity in entities if entity.type in _BARE]
    found: list[Entity] = []
    for entity in entities:
        if entity.type in _BARE or entity.type == "blockquote":
            found.append(entity)
            continue
        start = entity.offset
        for hole in (hole for hole in bare if entity.offset <= hole.offset and hole.end <= entity.end):
            if start < hole.offset:
                found.append(Entity(entity.type, start, hole.offset - start, entity.url))
            start = hole.end
        if start < entity.end:
            found.append(Entity(entity.type, start, entity.end - start, entity.url))
    return tuple(sorted(found, key=lambda entity: (entity.offset, -entity.length)))


# Tables


def _cells(table: SyntaxTreeNode) -> list[list[str]]:
    rows = [row for part in table.children for row in part.children]
    return [[render_inline(cell) for cell in row.children] for row in rows]


def render_inline(node: SyntaxTreeNode) -> str:
    writer = _Writer()
    writer.blocks(node.children)
    return writer.written().text.replace("\n", " ")


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = [" │ ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "─┼─".join("─" * width for width in widths)
    return "\n".join(line.rstrip() for line in (lines[0], rule, *lines[1:]))


def _width(text: str) -> int:
    """Columns on the screen: letters of East Asian scripts and most emoji take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
