"""Markdown as it looks in a terminal: Rich's, with quiet headings and code, links that show where they lead."""

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.text import Text

from turnwire.channels.console.blocks import markdown_parser

_parser = markdown_parser()


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold underline" if self.tag == "h1" else "bold")
        yield text


class _CodeBlock(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        # In the terminal's own colours: nobody knows whether it is light or dark.
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
        # A link that hides its address is a trap; it is written out.
        super().__init__("", hyperlinks=False)
        self.parsed = _parser.parse(text)


class MarkdownBlock:
    """A piece of Markdown without empty space around it; as it was written, if Rich cannot show it."""

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
    """Without the spaces that fill it up: they would be copied along, and broken when the terminal becomes narrower."""
    line = list(line)
    while line:
        last = line.pop()
        if text := last.text.rstrip():
            return [*line, Segment(text, last.style)]
    return []
