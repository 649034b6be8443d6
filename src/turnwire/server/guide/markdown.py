"""Markdown to HTML, with GitHub's anchors, highlighted code, and the text of each section for the search."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec import Struct
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]
from pygments.util import ClassNotFound

_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")


class Section(Struct, frozen=True):
    """A heading and the text below it, up to the next heading."""

    level: int
    anchor: str
    title: str
    text: str


class Article(Struct, frozen=True):
    """A rendered page. `links` are its links as (heading above, text, address)."""

    title: str
    html: str
    sections: Sequence[Section]
    links: Sequence[tuple[str, str, str]]


def render(text: str, address: Callable[[str], str]) -> Article:
    """Return the page of a Markdown text; `address` maps each link and picture to its address on the site.

    HTML in the text is shown as text.
    """
    parser = _parser()
    tokens = parser.parse(text)
    sections: list[Section] = []
    links: list[tuple[str, str, str]] = []
    anchors: dict[str, int] = {}
    words: list[str] = []
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            title = _plain(tokens[index + 1])
            anchor = _anchor(title, anchors)
            token.attrSet("id", anchor)
            _close(sections, words)
            sections.append(Section(int(token.tag[1]), anchor, title, ""))
        elif token.type == "inline":
            if tokens[index - 1].type != "heading_open":
                words.append(_plain(token))
            heading = next((part.title for part in reversed(sections) if part.level == 2), "")
            links += [(heading, *link) for link in _map_links(token, address)]
        elif token.type == "fence":
            words.append(token.content)
        elif token.type in ("th_open", "td_open"):
            if style := token.attrs.pop("style", ""):
                # The policy of the pages allows no inline style.
                token.attrSet("class", str(style).rpartition(":")[2])
            if not tokens[index + 1].content:
                # A header without text is no header to a screen reader.
                token.tag = tokens[index + 2].tag = "td"
    _close(sections, words)
    title = sections[0].title if sections else ""
    return Article(title, parser.renderer.render(tokens, parser.options, {}), sections, links)


def _close(sections: list[Section], words: list[str]) -> None:
    """Give the collected text to the section that ends."""
    if sections:
        last = sections[-1]
        sections[-1] = Section(last.level, last.anchor, last.title, " ".join(" ".join(words).split()))
    words.clear()


def _map_links(token: Token, address: Callable[[str], str]) -> list[tuple[str, str]]:
    """Replace the addresses of links and pictures; return the links as (text, address)."""
    found: list[tuple[str, str]] = []
    children = token.children or []
    for index, child in enumerate(children):
        if child.type == "image":
            child.attrSet("src", address(str(child.attrGet("src"))))
        elif child.type == "link_open":
            href = address(str(child.attrGet("href")))
            child.attrSet("href", href)
            end = next(i for i in range(index, len(children)) if children[i].type == "link_close")
            found.append(("".join(part.content for part in children[index:end]), href))
    return found


def _anchor(title: str, taken: dict[str, int]) -> str:
    """Return the anchor that GitHub gives a heading; a repeated heading gets a number."""
    anchor = _NOT_IN_ANCHOR.sub("", title.lower()).replace(" ", "-")
    count = taken.get(anchor, 0)
    taken[anchor] = count + 1
    return f"{anchor}-{count}" if count else anchor


def _plain(token: Token) -> str:
    return "".join(" " if child.type in ("softbreak", "hardbreak") else child.content for child in token.children or [])


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table"])
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("table_open", lambda *_: '<div class="table" tabindex="0"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    parser.add_render_rule("heading_close", _heading_close)
    return parser


def _heading_close(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    opening = tokens[index - 2]
    link = f'<a class="anchor" href="#{opening.attrGet("id")}" aria-label="Link to this section">#</a>'
    return f"{'' if opening.tag == 'h1' else link}</{opening.tag}>\n"


def _fence(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    try:
        lexer = get_lexer_by_name(token.info.strip() or "text", stripnl=False)
    except ClassNotFound:
        lexer = get_lexer_by_name("text", stripnl=False)
    code = highlight(token.content, lexer, HtmlFormatter[str](nowrap=True))
    return f'<pre tabindex="0"><code>{code}</code></pre>\n'
