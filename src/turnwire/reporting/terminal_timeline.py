"""A turn's timeline in a terminal, as wide as that is."""

from collections.abc import Iterable
from itertools import pairwise

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from turnwire.reporting.timeline import Bar, Phase, Scale, Timeline, rate, spent_by_phase, time_words

COLOURS = {
    "queued": "bright_black",
    "thinking": "blue",
    "tools": "yellow",
    "answering": "green",
    "waiting": "magenta",
    "tool": "yellow",
    "search": "cyan",
    "review": "blue",
    "wait": "magenta",
}
_OUTCOMES = {"completed": "green", "failed": "red", "cancelled": "yellow", "interrupted": "magenta"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_LABEL = 22
_TIME = 12


class Picture:
    """To be printed by rich; it is as wide as the console."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        self._scale = Scale(line)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        line = self._line
        width = max(options.max_width - _LABEL - _TIME - 2, 16)
        yield Group(*self._head(), Text())
        yield self._axis(width)
        yield self._row("phases", self._strip(line.phases, width), time_words(line.length))
        for bar in line.bars:
            yield self._row(_name(bar), self._bar(bar, width), _bar_words(bar), _style(bar))
        if line.tokens.count:
            per_second = line.tokens.per_second
            words = f"{line.tokens.count}" + (f" · {per_second:.0f}/s" if per_second else "")
            yield self._row("tokens", self._sparkline(width), words, "green")
        if line.silences:
            longest = max(one.ms for one in line.silences)
            yield self._row("silences", self._silent(width), time_words(longest), "red")
        yield Text()
        yield self._legend()
        for mark in line.marks:
            yield Text.assemble((f"{time_words(mark.at):>10}  ", "dim"), mark.text)

    def _head(self) -> Iterable[Text]:
        line = self._line
        state = line.outcome or "under way"
        why = f" ({line.error or line.reason})" if line.error or line.reason else ""
        yield Text.assemble(
            ("turn ", "dim"), (line.turn_id, "bold"), "  ", (state + why, _OUTCOMES.get(state, "cyan")), overflow="fold"
        )
        facts = [f"agent {line.agent}", f"session {line.session_id}", f"{line.events} events", time_words(line.length)]
        yield Text(" · ".join(facts), "dim")
        times = [
            f"{name} {time_words(ms)}"
            for name, ms in (("first event", line.first_event), ("first token", line.first_token))
            if ms is not None
        ]
        if line.usage is not None:
            told = ((line.usage.input_tokens, "in"), (line.usage.output_tokens, "out"))
            times += [f"{count:,} tokens {name}" for count, name in told if count is not None]
        if times:
            yield Text(" · ".join(times))

    def _row(self, label: str, chart: Text, words: str, style: str = "") -> Text:
        label = label if len(label) <= _LABEL else label[: _LABEL - 1] + "…"
        return Text.assemble((f"{label:<{_LABEL}} ", style), chart, (f" {words:>{_TIME}}", "dim"), no_wrap=True)

    def _axis(self, width: int) -> Text:
        cells = [" "] * width
        free = 0
        for at in self._scale.ticks(max(width // 12, 2)):
            place, words = self._column(at, width), time_words(at)
            if place >= free and place + len(words) <= width:
                cells[place : place + len(words)] = words
                free = place + len(words) + 2
        return Text(f"{'':<{_LABEL}} {''.join(cells)}", "dim", no_wrap=True)

    def _column(self, at: float, width: int) -> int:
        return min(int(self._scale(at) * width), width - 1)

    def _strip(self, phases: Iterable[Phase], width: int) -> Text:
        strip = Text()
        named = list(phases)
        for column in range(width):
            at = self._scale.moment((column + 0.5) / width)
            here = next((phase.name for phase in named if phase.began <= at <= phase.ended), "thinking")
            is_broken = any(one.began < at < one.ended for one in self._scale.breaks)
            strip.append("╌" if is_broken else "━", COLOURS[here])
        return strip

    def _bar(self, bar: Bar, width: int) -> Text:
        begin, end = self._column(bar.began, width), self._column(bar.ended, width)
        if bar.kind == "review" or begin == end:
            drawn = {"review": "◆", "wait": "◇"}.get(bar.kind, "╸")
        else:
            drawn = ("╌" if bar.state == "void" else "━") * (end - begin)
            drawn += "›" if bar.state == "running" else "╸"
        return Text.assemble(" " * begin, (drawn, _style(bar)), " " * (width - begin - len(drawn)))

    def _sparkline(self, width: int) -> Text:
        borders = [self._scale.moment(column / width) for column in range(width + 1)]
        borders[-1] += 1
        times = self._line.tokens.times
        rates = [rate(times, begin, end) for begin, end in pairwise(borders)]
        most = max(rates) or 1
        levels = [_LEVELS[0 if not one else max(1, round(one / most * 8))] for one in rates]
        return Text("".join(levels), "green")

    def _silent(self, width: int) -> Text:
        cells = [" "] * width
        for one in self._line.silences:
            for column in range(self._column(one.began, width), self._column(one.ended, width) + 1):
                cells[column] = "░"
        return Text("".join(cells), "red")

    def _legend(self) -> Text:
        legend = Text()
        for name, ms in spent_by_phase(self._line).items():
            legend.append("━ ", COLOURS[name])
            legend.append(f"{name} {time_words(ms)}   ")
        if self._line.silences:
            legend.append("░ ", "red")
            legend.append(f"pauses of 1 s or more: {len(self._line.silences)}")
        return legend


def _name(bar: Bar) -> str:
    return " › ".join([*bar.agent_path, bar.name])


def _bar_words(bar: Bar) -> str:
    words = "" if bar.kind == "review" else time_words(bar.ms)
    return {"failed": f"✗ {words}", "void": f"void {words}"}.get(bar.state, words)


def _style(bar: Bar) -> str:
    if bar.state == "failed":
        return "red"
    return "dim" if bar.state == "void" else COLOURS[bar.kind]
