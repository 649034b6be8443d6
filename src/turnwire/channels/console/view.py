"""What can be said of a turn in a terminal, and the words for it. `rendering` draws it, `plain` writes it."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TextIO

from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from turnwire.channels.console.markdown import Blocks, MarkdownBlock
from turnwire.channels.console.screen import Line, Screen

Tone = Literal["quiet", "good", "bad", "warning"]
MARKS: dict[Tone, str] = {"quiet": "·", "good": "✓", "bad": "✗", "warning": "■"}

_VALUE_LENGTH = 40


class Source(Struct, frozen=True):
    """What a number in the answer stands on, as a person reads it."""

    index: int
    title: str
    quote: str = ""
    url: str = ""


class View(Protocol):
    """One answer, while it is made. `depth` is how many agents deep in others a step is."""

    def hear(self, body: bytes) -> None:
        """An event as it stands in the log, before it is told in words."""
        ...

    def write(self, piece: str) -> None:
        """A piece of the answer, Markdown."""
        ...

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        """Something goes on until `end`, which may never come."""
        ...

    def progress(self, key: str, text: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None: ...

    def hint(self, text: str | None) -> None:
        """What goes on as long as no step does, such as thinking; it is not kept."""
        ...

    def notice(self, text: str | None) -> None:
        """Something that is more urgent than any step, until it is taken back; it is not kept."""
        ...

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None: ...

    def finish(self) -> None:
        """The turn has ended; what has not, will not."""
        ...

    def cite(self, sources: Sequence[Source]) -> None: ...

    def type(self, text: str) -> None:
        """What is being typed meanwhile, for the next message."""
        ...

    def ask(self, question: str | None) -> None:
        """A question that waits for a key, or none any more."""
        ...

    def paint(self) -> None:
        """Brings what is seen up to date. Called several times a second."""
        ...

    def close(self) -> None:
        """The turn is over: nothing is replaced any more."""
        ...


def duration(ms: float) -> str:
    seconds = ms / 1000
    if seconds < 10:
        return f"{seconds:.1f}s"
    return f"{seconds:.0f}s" if seconds < 60 else f"{int(seconds) // 60}m{int(seconds) % 60:02}s"


def one_line(text: str, length: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def call_label(tool: str, args: dict[str, Any]) -> str:
    """A tool and what it was given, such as `search(query='moss')`."""
    told = ", ".join(f"{name}={one_line(repr(value), _VALUE_LENGTH)}" for name, value in args.items())
    return f"{tool}({told})" if told else tool


# An answer while it is made, as plain text: for pipes, for files, for screen readers and `--plain`.


class PlainView:
    def __init__(self, answer: TextIO, about: TextIO, *, share_a_terminal: bool = False) -> None:
        self._answer = answer
        self._about = about
        self._share = share_a_terminal
        self._is_mid_line = False

    def hear(self, body: bytes) -> None: ...

    def write(self, piece: str) -> None:
        self._answer.write(piece)
        self._answer.flush()
        if piece:
            self._is_mid_line = not piece.endswith("\n")

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        """Said when it ends: two lines for each step would be noise."""

    def progress(self, key: str, text: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None:
        took = "" if ms is None else f" {duration(ms)}"
        self.line(f"{label}{took}", "good" if succeeded else "bad", depth)

    def hint(self, text: str | None) -> None: ...

    def notice(self, text: str | None) -> None:
        if text is not None:
            self._tell(f"· {text}")

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        self._tell(f"{'  ' * depth}{MARKS[tone]} {text}")

    def finish(self) -> None: ...

    def cite(self, sources: Sequence[Source]) -> None:
        for source in sources:
            quote = f" “{source.quote}”" if source.quote else ""
            self._tell(f"[{source.index}] {source.title}{quote}{f' {source.url}' if source.url else ''}")

    def type(self, text: str) -> None: ...

    def ask(self, question: str | None) -> None:
        if question is not None:
            self._tell(question)

    def paint(self) -> None: ...

    def close(self) -> None:
        if self._is_mid_line:
            self.write("\n")

    def _tell(self, text: str) -> None:
        if self._share and self._is_mid_line:
            self.write("\n")
        self._about.write(f"{text}\n")
        self._about.flush()


class JsonView(PlainView):
    """The events themselves are the answer; of everything else only what went wrong on the way is told."""

    def hear(self, body: bytes) -> None:
        self._answer.write(f"{body.decode('ascii')}\n")
        self._answer.flush()

    def write(self, piece: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None: ...

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        if tone in ("bad", "warning"):
            super().line(text, tone, depth)

    def cite(self, sources: Sequence[Source]) -> None: ...


# An answer while it is made, in a terminal: finished Markdown above, what goes on in a few lines below it.


_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_SECONDS = 0.1
_SILENCE_SECONDS = 0.7
# Lines of the screen that the unfinished block leaves free.
_SPARE_LINES = 4
_STYLES: dict[Tone, str] = {"quiet": "dim", "good": "green", "bad": "red", "warning": "yellow"}


class _Step(Struct):
    label: str
    depth: int
    began: float
    text: str = ""


def whole_answer(text: str) -> list[RenderableType]:
    """An answer that is complete, as a view would have left it."""
    blocks = Blocks()
    blocks.add(text)
    shown: list[RenderableType] = []
    for block in blocks.finish():
        shown += [Text(), MarkdownBlock(block)] if shown else [MarkdownBlock(block)]
    return shown


class LiveView:
    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._blocks = Blocks()
        self._staying: list[RenderableType] = []
        self._steps: dict[str, _Step] = {}
        self._question: str | None = None
        self._typed = ""
        self._drawn = ("", 0)
        self._tail: list[Line] = []
        self._last: str | None = None
        self._is_over = False
        self._hint: str | None = None
        self._notice: _Step | None = None
        self._began = self._heard = clock()

    def hear(self, body: bytes) -> None: ...

    def write(self, piece: str) -> None:
        self._blocks.add(piece)
        self._heard = self._clock()

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        self._settle()
        self._steps[key] = _Step(label, depth, self._clock())

    def progress(self, key: str, text: str) -> None:
        if step := self._steps.get(key):
            step.text = text

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None:
        self._settle()
        self._heard = self._clock()
        step = self._steps.pop(key, None)
        if ms is None and step is not None:
            ms = (self._clock() - step.began) * 1000
        tone: Tone = "good" if succeeded else "bad"
        told = Text.assemble((f"{MARKS[tone]} ", _STYLES[tone]), label)
        if ms is not None:
            told.append(f" {duration(ms)}", "dim")
        self._stay(told, depth)

    def hint(self, text: str | None) -> None:
        self._hint = text

    def notice(self, text: str | None) -> None:
        self._notice = None if text is None else _Step(text, 0, self._clock())

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        self._settle()
        style = _STYLES[tone]
        self._stay(Text.assemble((f"{MARKS[tone]} ", style), (text, "" if tone == "good" else style)), depth)

    def finish(self) -> None:
        self._abandon()

    def cite(self, sources: Sequence[Source]) -> None:
        self._finish_text()
        self._separate("sources")
        for source in sources:
            told = Text.assemble((f"[{source.index}] ", "cyan"), source.title)
            if source.quote:
                told.append(f" “{source.quote}”", "dim")
            if source.url:
                told.append(f" {source.url}", "dim")
            self._staying.append(_Hanging(told, 4))

    def type(self, text: str) -> None:
        self._typed = text

    def ask(self, question: str | None) -> None:
        self._question = question

    def paint(self) -> None:
        self._take(self._blocks.finished())
        staying, self._staying = self._staying, []
        self._screen.update(staying, self._below())

    def close(self) -> None:
        self._abandon()
        self._finish_text()
        self._is_over = True
        self.paint()

    def _abandon(self) -> None:
        """Steps that never ended are told too: they are what was going on when it stopped."""
        steps, self._steps = self._steps, {}
        for step in steps.values():
            took = duration((self._clock() - step.began) * 1000)
            self.line(f"{step.label} {took}, not finished", "warning", step.depth)

    def _settle(self) -> None:
        """Text that came before a step stands before it; but a piece of code is not torn in two."""
        if not self._blocks.is_in_code:
            self._finish_text()

    def _finish_text(self) -> None:
        self._take(self._blocks.finish())

    def _take(self, blocks: list[str]) -> None:
        for block in blocks:
            self._separate("text")
            self._last = "text"
            self._staying.append(MarkdownBlock(block))

    def _stay(self, told: Text, depth: int) -> None:
        if self._last != "step":
            self._separate("step")
        self._staying.append(_Hanging(told, 2, 2 * depth))

    def _separate(self, kind: str) -> None:
        """An empty line between unlike things, and between paragraphs."""
        if self._last is not None:
            self._staying.append(Text())
        self._last = kind

    def _below(self) -> list[Line]:
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
        told: list[Text] = []
        if self._is_over:
            return told
        if self._question is not None:
            told.append(Text(self._question, "bold yellow"))
        elif self._notice is not None or self._steps:
            told.append(self._running([self._notice] if self._notice else list(self._steps.values())))
        elif self._hint is not None or self._clock() - self._heard > _SILENCE_SECONDS:
            # Never dead air: who waits must see that something is alive.
            told.append(self._running([_Step(self._hint or "working", 0, self._heard)]))
        if self._typed:
            # Its end is where the cursor would be.
            told.append(Text("› " + self._typed.replace("\n", "⏎")[-(width - 4) :], "bold"))
        for text in told:
            text.no_wrap = True
            text.truncate(width - 1, overflow="ellipsis")
        return told

    def _running(self, steps: list[_Step]) -> Text:
        step, now = steps[-1], self._clock()
        frame = _FRAMES[int((now - self._began) / _FRAME_SECONDS) % len(_FRAMES)]
        # However narrow it is, how long it takes is seen.
        label = one_line(step.label, max(10, self._screen.console.width - 2 * step.depth - 12))
        told = Text.assemble("  " * step.depth, (f"{frame} ", "cyan"), label)
        if len(steps) > 1:
            told.append(f" (+{len(steps) - 1})", "dim")
        elapsed = now - step.began
        if elapsed >= 1:
            told.append(f" {elapsed:.0f}s", "dim")
        if step.text:
            told.append(f" · {step.text}", "dim")
        return told


class _Hanging:
    """A paragraph whose other lines stand under the first one's words."""

    def __init__(self, text: Text, hang: int, indent: int = 0) -> None:
        self._text, self._hang, self._indent = text, hang, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # In a narrow terminal there is no room for it.
        indent = min(self._indent, options.max_width // 4)
        lines = self._text.wrap(console, max(1, options.max_width - indent - self._hang))
        first = self._text.wrap(console, max(1, options.max_width - indent))
        if len(first) == 1:
            lines = first
        for number, line in enumerate(lines):
            yield Text(" " * (indent + (self._hang if number else 0)), end="")
            yield line
