"""The pages of the site by name, their navigation, the search index, and the links that lead nowhere."""

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, lru_cache
from html import escape, unescape
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from turnwire.server.guide import find_documentation
from turnwire.server.guide.markdown import Article, Section, render

INDEX = "index.html"
SEARCH = "search.json"
STATIC = ("guide.css", "guide.js")
SOURCE = "https://github.com/turnwire/turnwire/blob/main/"
"""The address of files that are in the repository, but not on the site."""

_HERE = Path(__file__).parent
_PICTURES = frozenset({".png", ".svg", ".webp"})
_HREF = re.compile(r'(?:href|src)="([^"]*)"')
_ID = re.compile(r'id="([^"]*)"')


class Entry(Struct, frozen=True):
    """A page in the navigation."""

    group: str
    title: str
    name: str


class Guide:
    """The site of a folder that has `docs/`. Names are relative to the site's top: `guides/page.html`.

    Not bound to an event loop; rendering takes milliseconds per page, and `search.json` renders all of them.
    """

    def __init__(self, folder: Path) -> None:
        docs = folder / "docs"
        self._docs = docs
        self._sources = {page_name(path.relative_to(docs).as_posix()): path for path in sorted(docs.rglob("*.md"))}
        self._pictures = {
            path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*")) if path.suffix in _PICTURES
        }
        self._template = (_HERE / "page.html").read_text(encoding="utf-8")
        self.article = lru_cache(maxsize=None)(self._render)

    @property
    def pages(self) -> Sequence[str]:
        """Return the names of the pages."""
        return list(self._sources)

    @property
    def names(self) -> Sequence[str]:
        """Return the names of all files of the site."""
        return [*self._sources, *self._pictures, *STATIC, SEARCH]

    def read(self, name: str) -> bytes | None:
        """Return a file of the site, or None if there is none of this name."""
        if name in self._sources:
            return self._page(name).encode()
        if name in self._pictures:
            return self._pictures[name].read_bytes()
        if name in STATIC:
            return (_HERE / name).read_bytes()
        if name == SEARCH:
            return json.dumps(list(self._search_rows()), ensure_ascii=False, separators=(",", ":")).encode()
        return None

    @cached_property
    def navigation(self) -> Sequence[Entry]:
        """Return the pages that `docs/README.md` links to, under its headings, each once."""
        found: dict[str, Entry] = {}
        for group, title, href in self.article(INDEX).links:
            name = urlsplit(href).path
            if name in self._sources and name not in found:
                found[name] = Entry(group, title[:1].upper() + title[1:], name)
        return list(found.values())

    def dead_links(self) -> list[str]:
        """Return the relative links whose page, file or anchor does not exist, as `page: link`."""
        anchors = {name: set(_ID.findall(self._page(name))) for name in self._sources}
        found: list[str] = []
        for name in self._sources:
            for match in _HREF.finditer(self._page(name)):
                href = unescape(match[1])
                parts = urlsplit(href)
                if parts.scheme:
                    if href.startswith(SOURCE) and not self._is_in_repository(href.removeprefix(SOURCE)):
                        found.append(f"{name}: {href}")
                    continue
                path = posixpath.normpath(posixpath.join(posixpath.dirname(name), parts.path)) if parts.path else name
                known = path in anchors or path in self._pictures or path in STATIC
                if not known or (parts.fragment and parts.fragment not in anchors.get(path, ())):
                    found.append(f"{name}: {href}")
        return found

    def _is_in_repository(self, path: str) -> bool:
        """Return True if the repository has the file, or if this is an installed package, which cannot know."""
        top = self._docs.parent
        return not (top / "pyproject.toml").exists() or (top / path).exists()

    def _render(self, name: str) -> Article:
        path = self._sources[name]
        return render(path.read_text(encoding="utf-8"), lambda href: self._address(path, href))

    def _address(self, path: Path, href: str) -> str:
        """Return the address on the site of a link in a Markdown file."""
        parts = urlsplit(href)
        if parts.scheme or not parts.path:
            return href
        here = path.parent.relative_to(self._docs).as_posix()
        target = posixpath.normpath(posixpath.join("docs", here, parts.path))
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        if target == "README.md":
            target = "docs/README.md"
        name = page_name(target.removeprefix("docs/"))
        if target.startswith("docs/") and (name in self._sources or name in self._pictures or name.endswith(".html")):
            return posixpath.relpath(name, here) + fragment
        return SOURCE + target + fragment

    def _page(self, name: str) -> str:
        article = self.article(name)
        top = posixpath.relpath(".", posixpath.dirname(name) or ".")
        fields = {
            "TITLE": escape(article.title),
            "TOP": top,
            "INDEX": f"{top}/{INDEX}",
            "NAVIGATION": self._navigation_html(name),
            "CONTENTS": _contents_html(article.sections),
            "ARTICLE": article.html,
            "NEIGHBOURS": self._neighbours_html(name),
        }
        return _fill(self._template, fields)

    def _navigation_html(self, current: str) -> str:
        parts: list[str] = []
        for group, entries in groupby(self.navigation, key=lambda entry: entry.group):
            parts.append(f"<h2>{escape(group)}</h2><ul>" if group else "<ul>")
            for entry in entries:
                mark = ' aria-current="page"' if entry.name == current else ""
                parts.append(f'<li><a href="{_relative(entry.name, current)}"{mark}>{escape(entry.title)}</a></li>')
            parts.append("</ul>")
        return "".join(parts)

    def _neighbours_html(self, name: str) -> str:
        names = [entry.name for entry in self.navigation]
        if name not in names:
            return ""
        position = names.index(name)
        links: list[str] = []
        if position > 0:
            entry = self.navigation[position - 1]
            links.append(f'<a rel="prev" href="{_relative(entry.name, name)}">← {escape(entry.title)}</a>')
        if position + 1 < len(names):
            entry = self.navigation[position + 1]
            links.append(f'<a rel="next" href="{_relative(entry.name, name)}">{escape(entry.title)} →</a>')
        return "".join(links)

    def _search_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the address, the page's title, the heading and the text of every section."""
        for name in self._sources:
            article = self.article(name)
            for section in article.sections:
                yield f"{name}#{section.anchor}", article.title, section.title, section.text


def page_name(path: str) -> str:
    """Return the name of the page of a Markdown file; other paths are returned as they are."""
    if posixpath.basename(path) == "README.md":
        return posixpath.join(posixpath.dirname(path), INDEX)
    return path.removesuffix(".md") + ".html" if path.endswith(".md") else path


@cache
def own_guide() -> Guide | None:
    """Return the site of Turnwire's own documentation, or None if it is not installed."""
    folder = find_documentation()
    return Guide(folder) if folder else None


def message_page(title: str, text: str, link: str = SOURCE + "docs/README.md", style: str = "") -> str:
    """Return a page that is one message and one link. `style` is the address of a style sheet."""
    sheet = f'<link rel="stylesheet" href="{escape(style)}">' if style else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">{sheet}</head>'
        f'<body><main class="message"><h1>{escape(title)}</h1>'
        f'<p>{escape(text)} <a href="{escape(link)}">documentation</a></p></main></body></html>'
    )


def _contents_html(sections: Sequence[Section]) -> str:
    second = [section for section in sections if section.level == 2]
    if len(second) < 3:
        return ""
    items = "".join(f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>' for section in second)
    return f'<nav class="contents" aria-label="On this page"><h2>On this page</h2><ul>{items}</ul></nav>'


def _relative(name: str, current: str) -> str:
    return posixpath.relpath(name, posixpath.dirname(current) or ".")


def _fill(template: str, fields: dict[str, str]) -> str:
    # In one pass, so that a page that quotes a field's name keeps it.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: fields[match[1]], template)
