"""A turn's timeline in a terminal, as wide as the terminal is."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from turnwire.reporting.timeline import Bar, Cost, Scale, Timeline, duration_text, shorten

_COLOURS = {
    "queued": "bright_black",
    "thinking": "blue",
    "tools": "yellow",
    "answering": "green",
    "waiting": "magenta",
    "model": "blue",
    "reasoning": "bright_black",
    "agent": "green",
    "tool": "yellow",
    "search": "cyan",
    "review": "blue",
    "wait": "magenta",
    "failed": "red",
    "void": "dim",
    "silence": "red",
}
_OUTCOMES = {"completed": "green", "failed": "red", "cancelled": "yellow", "interrupted": "magenta", "joined": "cyan"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_MAX_LABEL, _MIN_LABEL = 24, 12
_TIME = 12


class TimelineView:
    """A Rich renderable of a timeline."""

    def __init__(self, line: Timeline, cost: Cost | None = None) -> None:
        self._line = line
        self._cost = cost
        self._scale = Scale(line)
        self._label = _MAX_LABEL

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        line, tokens = self._line, self._line.tokens
        self._label = min(max(options.max_width // 4, _MIN_LABEL), _MAX_LABEL)
        width = max(options.max_width - self._label - _TIME - 2, 16)
        yield from self._head()
        yield Text()
        yield self._axis(width)
        yield self._row("phases", self._phases(width), line.length_text)
        for bar in line.bars:
            yield self._row(bar.label, self._bar(bar, width), _bar_text(bar), _COLOURS[bar.style])
        if tokens.count:
            text = f"{tokens.count} · {tokens.per_second:.0f}/s" if tokens.per_second else f"{tokens.count}"
            yield self._row("pieces", self._sparkline(width), text, "green")
        if line.silences:
            longest = max(silence.ms for silence in line.silences)
            yield self._row("silences", self._silences(width), duration_text(longest), "red")
        yield Text()
        yield self._legend()
        for milestone in line.milestones:
            yield Text.assemble((f"{duration_text(milestone.at):>10}  ", "dim"), milestone.text)

    def _head(self) -> Iterable[Text]:
        line = self._line
        status = (line.status_text, _OUTCOMES.get(line.status, "cyan"))
        yield Text.assemble(("turn ", "dim"), (line.turn_id, "bold"), "  ", status, overflow="fold")
        facts = [f"agent {line.agent}", f"session {line.session_id}", f"{line.events} events", line.length_text]
        yield Text(" · ".join(facts), "dim")
        figures = line.latency_texts
        if line.usage is not None:
            counts = ((line.usage.input_tokens, "in"), (line.usage.output_tokens, "out"))
            figures += [f"{count:,} tokens {direction}" for count, direction in counts if count is not None]
        if self._cost is not None:
            figures.append(self._cost.text)
        if figures:
            yield Text(" · ".join(figures))

    def _row(self, label: str, chart: Text, value: str, style: str = "") -> Text:
        label = shorten(label, self._label)
        return Text.assemble((f"{label:<{self._label}} ", style), chart, (f" {value:>{_TIME}}", "dim"), no_wrap=True)

    def _axis(self, width: int) -> Text:
        cells = [" "] * width
        free = 0
        for at in self._scale.ticks(max(width // 12, 2)):
            column, text = self._column(at, width), duration_text(at)
            if column >= free and column + len(text) <= width:
                cells[column : column + len(text)] = text
                free = column + len(text) + 2
        return Text(f"{'':<{self._label}} {''.join(cells)}", "dim", no_wrap=True)

    def _column(self, at: float, width: int) -> int:
        return min(int(self._scale(at) * width), width - 1)

    def _phases(self, width: int) -> Text:
        strip = Text()
        for column in range(width):
            at = self._scale.moment((column + 0.5) / width)
            name = next((phase.name for phase in self._line.phases if phase.began <= at <= phase.ended), "thinking")
            strip.append("╌" if self._scale.is_broken(at) else "━", _COLOURS[name])
        return strip

    def _bar(self, bar: Bar, width: int) -> Text:
        begin, end = self._column(bar.began, width), self._column(bar.ended, width)
        if bar.is_instant or begin == end:
            drawn = {"review": "◆", "wait": "◇"}.get(bar.kind, "╸")
        else:
            drawn = ("╌" if bar.state == "void" else "━") * (end - begin)
            drawn += "›" if bar.state == "running" else "╸"
        return Text.assemble(" " * begin, (drawn, _COLOURS[bar.style]), " " * (width - begin - len(drawn)))

    def _sparkline(self, width: int) -> Text:
        levels = [_LEVELS[max(1, round(rate * 8)) if rate else 0] for rate in self._scale.token_rates(width)]
        return Text("".join(levels), "green")

    def _silences(self, width: int) -> Text:
        cells = [" "] * width
        for silence in self._line.silences:
            for column in range(self._column(silence.began, width), self._column(silence.ended, width) + 1):
                cells[column] = "░"
        return Text("".join(cells), "red")

    def _legend(self) -> Text:
        legend = Text()
        for style, text in self._line.legend:
            legend.append("░ " if style == "silence" else "━ ", _COLOURS[style])
            legend.append(f"{text}   ")
        return legend


def _bar_text(bar: Bar) -> str:
    sign = {"failed": "✗ ", "cancelled": "✗ ", "void": "void "}.get(bar.state, "")
    return f"{sign}{bar.duration_text}"
