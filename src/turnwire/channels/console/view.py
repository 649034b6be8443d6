"""Views of one answer while it streams: `PlainView` for pipes, `JsonView` for programs, `LiveView` for a terminal."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TextIO

from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from turnwire.channels.console.markdown import MarkdownBlock, MarkdownBlocks
from turnwire.channels.console.screen import Line, Screen
from turnwire.core.log.codec import clean_text

Tone = Literal["quiet", "good", "bad", "warning"]
SYMBOLS: dict[Tone, str] = {"quiet": "·", "good": "✓", "bad": "✗", "warning": "■"}

_VALUE_LENGTH = 40
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_SECONDS = 0.1
_SILENCE_SECONDS = 0.7
# Lines of the screen that the unfinished block leaves free.
_SPARE_LINES = 4
_STYLES: dict[Tone, str] = {"quiet": "dim", "good": "green", "bad": "red", "warning": "yellow"}


class Source(Struct, frozen=True):
    """The source behind a citation number, as a person reads it."""

    index: int
    title: str
    quote: str = ""
    url: str = ""


class View:
    """A view of one answer while it streams; a method that a view does not need does nothing.

    `depth` is how many sub-agents deep a step is.
    """

    def receive(self, body: bytes) -> None:
        """Handle the stored JSON of an event, before the event is shown as text."""

    def write(self, piece: str) -> None:
        """Append a piece of the answer, as Markdown."""

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        """Show a step as running until `end`, which may never be called."""

    def progress(self, key: str, text: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None: ...

    def hint(self, text: str | None) -> None:
        """Show an activity such as thinking while no step runs; it is not kept."""

    def notice(self, text: str | None) -> None:
        """Show a text in place of the running steps until it is cleared with None; it is not kept."""

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None: ...

    def finish(self) -> None:
        """Mark running steps as unfinished: the turn has ended."""

    def cite(self, sources: Sequence[Source]) -> None: ...

    def type(self, text: str) -> None:
        """Show the text that a person types for the next message."""

    def ask(self, question: str | None) -> None:
        """Show a question that waits for a key; None removes it."""

    def paint(self) -> None:
        """Redraw the view. Called several times a second."""

    def close(self) -> None:
        """Write what is left; nothing is redrawn afterwards."""


def duration(ms: float) -> str:
    seconds = ms / 1000
    if seconds < 10:
        return f"{seconds:.1f}s"
    return f"{seconds:.0f}s" if seconds < 60 else f"{int(seconds) // 60}m{int(seconds) % 60:02}s"


def one_line(text: str, length: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def clean_line(text: str, length: int = 200) -> str:
    """Return the text on one line, without control characters."""
    return one_line(clean_text(text), length)


def call_label(tool: str, args: dict[str, Any]) -> str:
    """Return a tool call as text, such as `search(query='moss')`."""
    arguments = ", ".join(f"{name}={one_line(repr(value), _VALUE_LENGTH)}" for name, value in args.items())
    return f"{tool}({arguments})" if arguments else tool


def render_answer(text: str) -> list[RenderableType]:
    """Render a complete answer the way a view leaves it."""
    blocks = MarkdownBlocks()
    blocks.add(text)
    rendered: list[RenderableType] = []
    for block in blocks.finish():
        rendered += [Text(), MarkdownBlock(block)] if rendered else [MarkdownBlock(block)]
    return rendered


class PlainView(View):
    """Plain text for pipes, files, screen readers and `--plain`: the answer to one stream, the rest to another.

    A step is printed when it ends.
    """

    def __init__(self, answer: TextIO, details: TextIO, *, shares_terminal: bool = False) -> None:
        self._answer = answer
        self._details = details
        self._shares_terminal = shares_terminal
        self._is_mid_line = False

    def write(self, piece: str) -> None:
        self._answer.write(piece)
        self._answer.flush()
        if piece:
            self._is_mid_line = not piece.endswith("\n")

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None:
        elapsed = "" if ms is None else f" {duration(ms)}"
        self.line(f"{label}{elapsed}", "good" if succeeded else "bad", depth)

    def notice(self, text: str | None) -> None:
        if text is not None:
            self._print(f"· {text}")

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        self._print(f"{'  ' * depth}{SYMBOLS[tone]} {text}")

    def cite(self, sources: Sequence[Source]) -> None:
        for source in sources:
            quote = f" “{source.quote}”" if source.quote else ""
            self._print(f"[{source.index}] {source.title}{quote}{f' {source.url}' if source.url else ''}")

    def ask(self, question: str | None) -> None:
        if question is not None:
            self._print(question)

    def close(self) -> None:
        if self._is_mid_line:
            self.write("\n")

    def _print(self, text: str) -> None:
        if self._shares_terminal and self._is_mid_line:
            self.write("\n")
        self._details.write(f"{text}\n")
        self._details.flush()


class JsonView(PlainView):
    """The log's events, one per line; of everything else only warnings and errors are printed."""

    def receive(self, body: bytes) -> None:
        self._answer.write(f"{body.decode('ascii')}\n")
        self._answer.flush()

    def write(self, piece: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None: ...

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        if tone in ("bad", "warning"):
            super().line(text, tone, depth)

    def cite(self, sources: Sequence[Source]) -> None: ...


class _Step(Struct):
    label: str
    depth: int
    began: float
    text: str = ""


class LiveView(View):
    """A terminal: finished Markdown above, and a few live lines with the running steps below it."""

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._blocks = MarkdownBlocks()
        self._permanent: list[RenderableType] = []
        self._steps: dict[str, _Step] = {}
        self._question: str | None = None
        self._typed = ""
        self._drawn = ("", 0)
        self._tail: list[Line] = []
        self._last: str | None = None
        self._is_over = False
        self._hint: str | None = None
        self._notice: _Step | None = None
        self._began = self._active_at = clock()

    def write(self, piece: str) -> None:
        self._blocks.add(piece)
        self._active_at = self._clock()

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        self._flush_text()
        self._steps[key] = _Step(label, depth, self._clock())

    def progress(self, key: str, text: str) -> None:
        if step := self._steps.get(key):
            step.text = text

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None:
        self._flush_text()
        self._active_at = self._clock()
        step = self._steps.pop(key, None)
        if ms is None and step is not None:
            ms = (self._clock() - step.began) * 1000
        tone: Tone = "good" if succeeded else "bad"
        line = Text.assemble((f"{SYMBOLS[tone]} ", _STYLES[tone]), label)
        if ms is not None:
            line.append(f" {duration(ms)}", "dim")
        self._add_step(line, depth)

    def hint(self, text: str | None) -> None:
        self._hint = text

    def notice(self, text: str | None) -> None:
        self._notice = None if text is None else _Step(text, 0, self._clock())

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        self._flush_text()
        style = _STYLES[tone]
        self._add_step(Text.assemble((f"{SYMBOLS[tone]} ", style), (text, "" if tone == "good" else style)), depth)

    def finish(self) -> None:
        steps, self._steps = self._steps, {}
        for step in steps.values():
            elapsed = duration((self._clock() - step.began) * 1000)
            self.line(f"{step.label} {elapsed}, not finished", "warning", step.depth)

    def cite(self, sources: Sequence[Source]) -> None:
        self._finish_text()
        self._separate("sources")
        for source in sources:
            line = Text.assemble((f"[{source.index}] ", "cyan"), source.title)
            if source.quote:
                line.append(f" “{source.quote}”", "dim")
            if source.url:
                line.append(f" {source.url}", "dim")
            self._permanent.append(_HangingText(line, 4))

    def type(self, text: str) -> None:
        self._typed = text

    def ask(self, question: str | None) -> None:
        self._question = question

    def paint(self) -> None:
        self._add_blocks(self._blocks.finished())
        permanent, self._permanent = self._permanent, []
        self._screen.update(permanent, self._live_lines())

    def close(self) -> None:
        self.finish()
        self._finish_text()
        self._is_over = True
        self.paint()

    def _flush_text(self) -> None:
        """Write the text so far above the step that follows, unless that would split a code block."""
        if not self._blocks.is_in_code:
            self._finish_text()

    def _finish_text(self) -> None:
        self._add_blocks(self._blocks.finish())

    def _add_blocks(self, blocks: list[str]) -> None:
        for block in blocks:
            self._separate("text")
            self._last = "text"
            self._permanent.append(MarkdownBlock(block))

    def _add_step(self, line: Text, depth: int) -> None:
        if self._last != "step":
            self._separate("step")
        self._permanent.append(_HangingText(line, 2, 2 * depth))

    def _separate(self, kind: str) -> None:
        """Add an empty line between paragraphs, and between text, steps and sources."""
        if self._last is not None:
            self._permanent.append(Text())
        self._last = kind

    def _live_lines(self) -> list[Line]:
        screen = self._screen
        room = max(1, screen.console.height - _SPARE_LINES)
        status = [line for text in self._status() for line in screen.lines_of(text)[:1]]
        rest = self._blocks.preview(2 * screen.console.height)
        if not rest.strip():
            return status
        if (rest, screen.console.width) != self._drawn:
            self._drawn, self._tail = (rest, screen.console.width), screen.lines_of(MarkdownBlock(rest))
        tail = self._tail[-max(1, room - len(status)) :]
        gap: list[Line] = [[]] if self._last is not None else []
        return [*gap, *tail, *([[]] if status else []), *status][-max(1, screen.console.height - 1) :]

    def _status(self) -> list[Text]:
        width = self._screen.console.width
        lines: list[Text] = []
        if self._is_over:
            return lines
        if self._question is not None:
            lines.append(Text(self._question, "bold yellow"))
        elif self._notice is not None or self._steps:
            lines.append(self._running([self._notice] if self._notice else list(self._steps.values())))
        elif self._hint is not None or self._clock() - self._active_at > _SILENCE_SECONDS:
            # After a silence a spinner shows that the turn is alive.
            lines.append(self._running([_Step(self._hint or "working", 0, self._active_at)]))
        if self._typed:
            # The end of the text, where the cursor would be.
            lines.append(Text("› " + self._typed.replace("\n", "⏎")[-(width - 4) :], "bold"))
        for line in lines:
            line.no_wrap = True
            line.truncate(width - 1, overflow="ellipsis")
        return lines

    def _running(self, steps: list[_Step]) -> Text:
        step, now = steps[-1], self._clock()
        frame = _FRAMES[int((now - self._began) / _FRAME_SECONDS) % len(_FRAMES)]
        # The label leaves room for the elapsed time in a narrow terminal.
        label = one_line(step.label, max(10, self._screen.console.width - 2 * step.depth - 12))
        line = Text.assemble("  " * step.depth, (f"{frame} ", "cyan"), label)
        if len(steps) > 1:
            line.append(f" (+{len(steps) - 1})", "dim")
        elapsed = now - step.began
        if elapsed >= 1:
            line.append(f" {elapsed:.0f}s", "dim")
        if step.text:
            line.append(f" · {step.text}", "dim")
        return line


class _HangingText:
    """A paragraph with a hanging indent."""

    def __init__(self, text: Text, hang: int, indent: int = 0) -> None:
        self._text, self._hang, self._indent = text, hang, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A narrow terminal has no room for a deep indent.
        indent = min(self._indent, options.max_width // 4)
        lines = self._text.wrap(console, max(1, options.max_width - indent - self._hang))
        first = self._text.wrap(console, max(1, options.max_width - indent))
        if len(first) == 1:
            lines = first
        for number, line in enumerate(lines):
            yield Text(" " * (indent + (self._hang if number else 0)), end="")
            yield line
