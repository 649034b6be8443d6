"""What a reader would read of a web page, as plain text with its title. Small on purpose: no layout, no links."""

import re
from html.parser import HTMLParser

from turnwire.core.codec import clean_text

_IGNORED = frozenset({"noscript", "script", "select", "style", "svg", "template"})
_INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "cite", "code", "del", "dfn", "em", "font", "i", "img", "ins", "kbd", "mark", "q"}
    | {"s", "samp", "small", "span", "strong", "sub", "sup", "td", "th", "time", "tt", "u", "var", "wbr"}
)
_SPACE = re.compile(r"\s+")
_META_CHARSET = re.compile(rb"<meta[^<>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?([\w-]{1,40})", re.IGNORECASE)
# Not every encoding of Python: some of them are not for texts, and some take ages for a long one.
_CHARSET = re.compile(
    r"utf-?(8|16|32)|us-ascii|iso-8859-\d+|windows-\d+|koi8-[ru]|big5|gbk|gb2312|gb18030|shift_jis|euc-(jp|kr)",
    re.IGNORECASE,
)


def decoded(body: bytes, charset: str | None) -> str:
    """The text, in the charset told by the response or by the page itself; UTF-8 if that is not one."""
    told = _META_CHARSET.search(body[:1024]) if charset is None else None
    name = told[1].decode("ascii", "replace") if told else charset or ""
    try:
        return body.decode(name if _CHARSET.fullmatch(name) else "utf-8", "replace").removeprefix("\ufeff")
    except LookupError:
        return body.decode("utf-8", "replace")


def read_html(page: str) -> tuple[str, str]:
    """Its title and its text."""
    reader = _PageReader()
    reader.feed(page)
    reader.close()
    lines = (line.rstrip() for line in clean_text("".join(reader.parts)).split("\n"))
    return _SPACE.sub(" ", clean_text("".join(reader.title))).strip(), "\n".join(line for line in lines if line)


class _PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.parts = ["\n"]
        self._in_title = False
        self._ignored = 0
        self._whole = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _IGNORED:
            self._ignored += 1
        elif tag == "title":
            self._in_title = not self._ignored and not self.title
        elif tag == "body":
            self._in_title, self._ignored = False, 0
        elif tag == "pre":
            self._whole += 1
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _IGNORED:
            self._ignored = max(0, self._ignored - 1)
        elif tag == "title":
            self._in_title = False
        elif tag == "pre":
            self._whole = max(0, self._whole - 1)
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif self._whole and not self._ignored:
            self.parts.append(data)
        elif not self._ignored:
            # A line of the source is not a line of the page.
            text = _SPACE.sub(" ", data)
            self._add(text.removeprefix(" ") if self._is_apart else text)

    @property
    def _is_apart(self) -> bool:
        return self.parts[-1].endswith((" ", "\n"))

    def _add(self, text: str) -> None:
        if text:
            self.parts.append(text)

    def _break(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._add("" if self._is_apart else " ")
        elif tag not in _INLINE:
            self.parts.append("\n")
