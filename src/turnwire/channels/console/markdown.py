"""Markdown in a terminal: a splitter for text that is still streaming, and a renderer of finished blocks."""

from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text


def _new_parser() -> MarkdownIt:
    """Return a parser that treats HTML tags as text, so that they do not vanish from an answer."""
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


_parser = _new_parser()
_splitter = _new_parser().disable("inline")  # It only finds the blocks' borders.


class MarkdownBlocks:
    """The blocks of a Markdown text that is still streaming."""

    def __init__(self) -> None:
        self._text = ""
        self._held = ""
        self._is_checked = True

    @property
    def rest(self) -> str:
        """Return the text that is not part of a finished block."""
        return self._text + self._held

    @property
    def is_in_code(self) -> bool:
        """Return True if the next piece continues an open code fence."""
        last = next((token for token in reversed(_top_level(self._text)) if token.map), None)
        if last is None or last.type != "fence" or last.map is None:
            return False
        lines = self._text.rstrip("\n").split("\n")[last.map[0] :]
        closing = lines[-1].strip()
        return len(lines) < 2 or not closing.startswith(last.markup) or bool(closing.strip(last.markup[0]))

    def add(self, piece: str) -> None:
        piece = self._held + piece
        # A carriage return waits: a line feed may follow.
        self._held = "\r" if piece.endswith("\r") else ""
        piece = piece.removesuffix("\r") if self._held else piece
        piece = piece.replace("\r\n", "\n").replace("\r", "\n")
        self._text += piece
        self._is_checked = self._is_checked and "\n" not in piece

    def finished(self) -> list[str]:
        """Return the blocks that were finished since the last call."""
        if self._is_checked:
            return []
        self._is_checked = True
        complete, line_end, _ = self._text.rpartition("\n")
        spans = _spans(complete + line_end)
        if len(spans) < 2:
            return []
        lines = self._text.split("\n")
        self._text = "\n".join(lines[spans[-1][0] :])
        return [_cut(lines, span) for span in spans[:-1]]

    def preview(self, max_lines: int) -> str:
        """Return about the last `max_lines` lines of the unfinished block."""
        lines = self.rest.split("\n")
        if len(lines) <= max_lines:
            return self.rest
        # A fence or a table is recognised by its first lines.
        is_fence, is_table = lines[0].startswith(("```", "~~~")), lines[1].lstrip(" |:").startswith("-")
        return "\n".join(lines[: 2 if is_table else int(is_fence)] + lines[-max_lines:])

    def finish(self) -> list[str]:
        """Return the remaining blocks: the text is complete."""
        self.add("\n")
        blocks = self.finished()
        lines = self._text.split("\n")
        blocks += [_cut(lines, span) for span in _spans(self._text)]
        self._text = ""
        return blocks


def _top_level(text: str) -> list[Token]:
    return [token for token in _splitter.parse(text) if token.level == 0 and token.nesting >= 0]


def _spans(text: str) -> list[tuple[int, int]]:
    return [(token.map[0], token.map[1]) for token in _top_level(text) if token.map]


def _cut(lines: list[str], span: tuple[int, int]) -> str:
    return "\n".join(lines[slice(*span)]).rstrip("\n")


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _CodeBlock(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        # The terminal's own colours, because its background may be light or dark.
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        yield Padding(syntax, (0, 0, 0, 2), expand=False)


class _HorizontalRule(HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="dim")


class _Block(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _HorizontalRule,
    }

    def __init__(self, text: str) -> None:
        # Links are written out: a hidden address could mislead.
        super().__init__("", hyperlinks=False)
        self.parsed = _parser.parse(text)


class MarkdownBlock:
    """A block of Markdown without blank lines around it; plain text if Rich cannot render it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            lines = console.render_lines(_Block(self._text), options, pad=False)
        except Exception:
            lines = console.render_lines(Text(self._text), options, pad=False)
        lines = [_trimmed(line) for line in lines]
        while lines and not lines[0]:
            del lines[0]
        while lines and not lines[-1]:
            del lines[-1]
        for line in lines:
            yield from line
            yield Segment.line()


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Remove trailing spaces, which would be copied along and wrapped in a narrower terminal."""
    line = list(line)
    while line:
        last = line.pop()
        if text := last.text.rstrip():
            return [*line, Segment(text, last.style)]
    return []
