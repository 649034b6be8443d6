"""Tests that the documentation site is complete, has no dead link or anchor, and needs nothing from elsewhere."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from turnwire.server.guide import find_documentation
from turnwire.server.guide.site import SOURCE, Guide

ROOT = Path(__file__).parents[2]
# Pages that another page of the map lists.
LISTED_ELSEWHERE = re.compile(r"adr/\d{4}-.*\.html")


@pytest.fixture(scope="module")
def guide() -> Guide:
    assert find_documentation() == ROOT
    return Guide(ROOT)


def site(folder: Path, **pages: str) -> Guide:
    for name, text in pages.items():
        path = folder / "docs" / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Guide(folder)


def page(guide: Guide, name: str) -> str:
    body = guide.read(name)
    assert body is not None
    return body.decode()


def test_no_link_and_no_anchor_leads_nowhere(guide: Guide) -> None:
    assert guide.dead_links() == []


def test_dead_pages_anchors_pictures_and_source_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    text = (
        "# A\n\n[1](b.md) [2](b.md#there) [3](b.md#gone) [4](gone.md) ![5](gone.svg) [6](../gone.txt) [7](#a) [8](#b)"
    )
    guide = site(tmp_path, README="# Top\n\n[a](deep/a.md) [b](deep/b.md)", deep__a=text, deep__b="# There")
    assert [link.removeprefix("deep/a.html: ") for link in guide.dead_links()] == [
        *("b.html#gone", "gone.html", f"{SOURCE}docs/deep/gone.svg", f"{SOURCE}docs/gone.txt", "#b"),
    ]


def test_every_page_is_in_the_navigation(guide: Guide) -> None:
    listed = {entry.name for entry in guide.navigation}
    missing = [name for name in guide.pages if name not in listed and not LISTED_ELSEWHERE.fullmatch(name)]
    assert missing == ["index.html"]
    decisions = page(guide, "adr/index.html")
    assert [name for name in guide.pages if LISTED_ELSEWHERE.fullmatch(name) and name[4:] not in decisions] == []


def test_pages_have_no_inline_code_and_load_nothing_from_elsewhere(guide: Guide) -> None:
    for name in guide.pages:
        html = page(guide, name)
        assert re.findall(r"<style|\bstyle=|\bon\w+=\"|<script(?![^>]*\bsrc=)", html) == [], name
        loaded = re.findall(r'<(?:script|img|link|source)[^>]*(?:src|href)="([^"]+)"', html)
        assert [address for address in loaded if re.match(r"https?:|//", address)] == [], name
    for name in ("guide.css", "guide.js"):
        assert not re.search(r"https?://|url\(|@import", page(guide, name))


def test_html_in_markdown_is_shown_as_text(tmp_path: Path) -> None:
    html = page(site(tmp_path, README="# <b>A</b>\n\n<script>x</script> {{TITLE}}\n\n```html\n<i>\n```"), "index.html")
    assert "<script>x" not in html
    assert "<b>A" not in html
    assert "&lt;script&gt;x" in html
    assert "{{TITLE}}" in html


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    guide = site(tmp_path, README="# A\n\n## The AI SDK's `socket`: it's fast!\n\n## Same\n\n## Same\n\n## a_b – c")
    anchors = [section.anchor for section in guide.article("index.html").sections]
    assert anchors == ["a", "the-ai-sdks-socket-its-fast", "same", "same-1", "a_b--c"]


def test_search_has_every_section_and_its_words(guide: Guide) -> None:
    rows = json.loads(page(guide, "search.json"))
    addresses = {row[0].partition("#")[0] for row in rows}
    assert addresses == set(guide.pages)
    (turn,) = [row for row in rows if row[0] == "glossary.html#glossary"]
    assert "one message, and everything that answers it" in turn[3]


def test_source_is_the_repository_of_the_package() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert f"{urls['Repository']}/blob/main/" == SOURCE


@pytest.mark.process
def test_script_writes_every_file(tmp_path: Path, guide: Guide) -> None:
    folder = tmp_path / "site"
    command = [sys.executable, "-m", "turnwire.server.guide", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    written = {
        path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*") if path.is_file()
    }
    assert written == set(guide.names)
    assert (tmp_path / "site" / "concepts.html").read_text() == page(guide, "concepts.html")
