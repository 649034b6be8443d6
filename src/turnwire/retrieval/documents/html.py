"""HTML: what a reader would read of the page, without its menus, scripts and forms."""

import re
from html.parser import HTMLParser

from turnwire.core.codec import clean_text
from turnwire.retrieval.documents.document import Block, Parsed

_IGNORED = frozenset(
    {"aside", "button", "footer", "form", "head", "header", "nav", "noscript", "script", "select", "style", "svg"}
    | {"template"}
)
_BLOCKS = frozenset(
    {"address", "article", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt", "figcaption", "figure"}
    | {
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tr",
        "ul",
    }
)
_HEADING = re.compile(r"h([1-6])")
_SPACE = re.compile(r"\s+")
_PERMALINK = "¶"


class _Piece:
    """A block while it is being read."""

    def __init__(self, level: int, whole: bool, is_main: bool) -> None:
        self.parts: list[str] = []
        self.level = level
        self.whole = whole
        self.is_main = is_main

    @property
    def text(self) -> str:
        # Cleaned here, because a reference such as &#29; becomes a control character only now.
        joined = clean_text("".join(self.parts).replace(_PERMALINK, ""))
        return joined.strip("\n") if self.whole else _SPACE.sub(" ", joined).strip()


class _DocumentReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[_Piece] = [_Piece(0, False, False)]
        self.title = ""
        self._in_title = False
        self._ignored = 0
        self._main = 0
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and not self.title:
            self._in_title = True
        elif self._ignores(tag):
            self._ignored += 1
        elif tag == "body":
            self._ignored = 0  # The end of a head need not be written.
        elif tag in ("main", "article"):
            self._main += 1
        elif tag == "pre":
            self._pre += 1
        elif tag in ("td", "th"):
            self.pieces[-1].parts.append(" | " if self.pieces[-1].parts else "")
        elif tag == "br":
            self.pieces[-1].parts.append("\n")
        if tag in _BLOCKS:
            self._begin(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif self._ignores(tag):
            self._ignored = max(0, self._ignored - 1)
        elif tag in ("main", "article"):
            self._main = max(0, self._main - 1)
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in _BLOCKS:
            self._begin("")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._ignored:
            self.pieces[-1].parts.append(data)

    def _ignores(self, tag: str) -> bool:
        # The header of a page is a menu, that of an article holds its title.
        return tag in _IGNORED and not (tag == "header" and self._main)

    def _begin(self, tag: str) -> None:
        level = _HEADING.fullmatch(tag)
        if self.pieces[-1].parts:
            self.pieces.append(_Piece(0, False, False))
        self.pieces[-1].level = int(level[1]) if level else 0
        self.pieces[-1].whole = self._pre > 0
        self.pieces[-1].is_main = self._main > 0


def parse_html(source: str) -> Parsed:
    reader = _DocumentReader()
    reader.feed(source)
    reader.close()
    pieces = [piece for piece in reader.pieces if piece.text.strip()]
    if any(piece.is_main for piece in pieces):
        pieces = [piece for piece in pieces if piece.is_main]
    texts: list[str] = []
    blocks: list[Block] = []
    offset = 0
    for piece in pieces:
        text = piece.text
        blocks.append(Block(offset, piece.level, text if piece.level else "", piece.whole))
        texts.append(text)
        offset += len(text) + 2
    title = clean_text(_SPACE.sub(" ", reader.title)).strip() or next((b.heading for b in blocks if b.level == 1), None)
    return Parsed("\n\n".join(texts), blocks, title)
