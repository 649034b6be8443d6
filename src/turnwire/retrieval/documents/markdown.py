"""Markdown: the file's own text, cut at its blocks. Only blocks are parsed, which is most of the speed."""

import re
from functools import cache

from markdown_it import MarkdownIt

from turnwire.retrieval.documents.parsed import Block, Parsed

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)
_CLOSING = re.compile(r"[ \t]+#+[ \t]*$|[ \t]*\{#[^}]*\}[ \t]*$")
_MARKUP = re.compile(r"[`*]+|\[([^\]]*)\]\([^)]*\)")
_WHOLE = frozenset({"fence", "code_block", "html_block"})


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def parse_markdown(text: str) -> Parsed:
    matter = _FRONT_MATTER.match(text)
    skipped = matter.end() if matter else 0
    told = _TITLE.search(matter[1]) if matter else None
    title = told[1] if told else None
    starts = _line_starts(text, skipped)
    blocks: list[Block] = []
    tokens = _parser().parse(text[skipped:])
    for number, token in enumerate(tokens):
        # What is inside another block belongs to it; a closing token has no lines.
        if token.level or token.map is None or token.nesting < 0:
            continue
        start = starts[token.map[0]]
        if token.type == "heading_open":
            heading = _heading(tokens[number + 1].content)
            blocks.append(Block(start, int(token.tag[1]), heading))
            title = title or (heading if token.tag == "h1" else None)
        else:
            blocks.append(Block(start, whole=token.type in _WHOLE, rows=token.type == "table_open"))
    return Parsed(text, blocks, title)


def _heading(text: str) -> str:
    return _MARKUP.sub(r"\1", _CLOSING.sub("", text)).strip()


def _line_starts(text: str, skipped: int) -> list[int]:
    starts = [skipped]
    while (found := text.find("\n", starts[-1])) >= 0:
        starts.append(found + 1)
    return starts
