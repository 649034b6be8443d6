"""HTML as text: one parser, for web pages (`page_text`) and for documents (`read_blocks`)."""

import re
from functools import cached_property
from html.parser import HTMLParser

from turnwire.core.log.codec import clean_text

HIDDEN = frozenset({"noscript", "script", "select", "style", "svg", "template"})
"""Elements whose text no reader sees."""
CHROME = frozenset({"aside", "button", "footer", "form", "header", "nav"})
"""Elements around the content of a page. The header of an article is content: it holds the title."""

_MAIN = frozenset({"article", "main"})
_CELLS = frozenset({"td", "th"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "button", "caption", "center", "dd", "details", "dialog"}
    | {"div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6"}
    | {"head", "header", "hr", "label", "legend", "li", "main", "menu", "nav", "ol", "option", "p", "pre", "section"}
    | {"summary", "table", "textarea", "tr", "ul"}
)
_HEADING = re.compile(r"h([1-6])")
_SPACE = re.compile(r"\s+")
_META_CHARSET = re.compile(rb"<meta[^<>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?([\w-]{1,40})", re.IGNORECASE)
# A subset of Python's codecs: some of those are not for text, and some take very long for a long input.
_CHARSET = re.compile(
    r"utf-?(8|16|32)|us-ascii|iso-8859-\d+|windows-\d+|koi8-[ru]|big5|gbk|gb2312|gb18030|shift_jis|euc-(jp|kr)",
    re.IGNORECASE,
)


class HtmlBlock:
    """A paragraph, heading, list item, table row or preformatted text. `level` is 1 to 6 for a heading, otherwise 0.

    `is_item` is True for the first paragraph of a list item.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.level = 0
        self.preformatted = False
        self.in_main = False
        self.is_item = False

    def add(self, data: str) -> None:
        # A line break in the source is a space on the page, unlike that of a <br>.
        self.parts.append(data if self.preformatted else _SPACE.sub(" ", data))

    @cached_property
    def text(self) -> str:
        # Cleaned only now, because a reference such as &#29; becomes a control character while it is parsed.
        text = clean_text("".join(self.parts))
        if self.preformatted:
            return text.strip("\n")
        return "\n".join(_SPACE.sub(" ", line).strip() for line in text.split("\n")).strip()


def decode_page(body: bytes, charset: str | None) -> str:
    """Decode a page by the charset of the response, else by the page's own `<meta>`, else as UTF-8."""
    declared = _META_CHARSET.search(body[:1024]) if charset is None else None
    name = declared[1].decode("ascii", "replace") if declared else charset or ""
    try:
        return body.decode(name if _CHARSET.fullmatch(name) else "utf-8", "replace").removeprefix("\ufeff")
    except LookupError:
        return body.decode("utf-8", "replace")


def page_text(source: str) -> tuple[str, str]:
    """Return the title and the visible text of a web page, without blank lines."""
    title, blocks = read_blocks(source)
    lines = (line.rstrip() for block in blocks for line in block.text.split("\n"))
    return title, "\n".join(line for line in lines if line)


def read_blocks(
    source: str, *, skip: frozenset[str] = HIDDEN, cell_separator: str = " "
) -> tuple[str, list[HtmlBlock]]:
    """Return the title and the blocks of a page, without the text of the elements in `skip`."""
    parser = _BlockParser(skip, cell_separator)
    parser.feed(source)
    parser.close()
    return _SPACE.sub(" ", clean_text("".join(parser.title))).strip(), parser.blocks


class _BlockParser(HTMLParser):
    def __init__(self, skip: frozenset[str], cell_separator: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.blocks = [HtmlBlock()]
        self._skip = skip
        self._cell_separator = cell_separator
        self._in_title = False
        self._skipped = 0
        self._main = 0
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skips(tag):
            self._skipped += 1
        elif tag == "title":
            self._in_title = not self._skipped and not self.title
        elif tag == "body":
            # The end tag of a head need not be written.
            self._in_title, self._skipped = False, 0
        elif tag in _MAIN:
            self._main += 1
        elif tag == "pre":
            self._pre += 1
        elif tag == "br":
            self.blocks[-1].parts.append("\n")
        self._separate(tag)
        if tag in _BLOCKS:
            self._begin_block(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skips(tag):
            self._skipped = max(0, self._skipped - 1)
        elif tag == "title":
            self._in_title = False
        elif tag in _MAIN:
            self._main = max(0, self._main - 1)
        elif tag == "pre":
            self._pre = max(0, self._pre - 1)
        if tag in _BLOCKS:
            self._begin_block("")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._skipped:
            self.blocks[-1].add(data)

    def _skips(self, tag: str) -> bool:
        return tag in self._skip and not (tag == "header" and self._main)

    def _separate(self, tag: str) -> None:
        """Keep the texts of two table cells, or of two custom elements, apart."""
        parts = self.blocks[-1].parts
        if tag in _CELLS:
            parts.append(self._cell_separator if parts else "")
        elif "-" in tag:
            parts.append(" ")

    def _begin_block(self, tag: str) -> None:
        previous = self.blocks[-1]
        # A paragraph that begins an item is the item; what follows an empty item is not.
        begins_item = previous.is_item and bool(tag) and not "".join(previous.parts).strip()
        if previous.parts:
            self.blocks.append(HtmlBlock())
        level = _HEADING.fullmatch(tag)
        block = self.blocks[-1]
        block.is_item = tag == "li" or (begins_item and not level)
        block.level = int(level[1]) if level else 0
        block.preformatted = self._pre > 0
        block.in_main = self._main > 0
