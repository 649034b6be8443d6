"""Comparisons over time: the same questions answered by synthesis and directly, kept in a file, and shown as a page.

Each question is a line of JSON. The lines of one call of `turnwire compare` have the same time, and make one run.
"""

import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec import Struct

from turnwire.core.log.codec import time_text
from turnwire.testing.evaluation import TurnFigures

COMPARISONS_FILE = "comparisons.jsonl"
MODES = ("synthesis", "direct")


class KeptComparison(Struct, frozen=True, kw_only=True):
    """The figures of one question in both modes. `at` is the time of its run, in ms."""

    at: int
    turnwire: str
    model: str | None
    question: str
    review: bool
    figures: dict[str, TurnFigures]


class ComparisonRun(Struct, frozen=True):
    """The comparisons of one run."""

    at: int
    model: str | None
    comparisons: list[KeptComparison]

    @property
    def time(self) -> str:
        return (time_text(self.at) or "")[:16].replace("T", " ")

    def mean(self, mode: str, figure: str) -> float | None:
        """Return the mean of a figure over the questions of which it is known."""
        values = [getattr(each.figures[mode], figure) for each in self.comparisons if mode in each.figures]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None


def keep(path: Path, comparison: KeptComparison) -> None:
    """Append a comparison to the file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Only for its owner: it has questions and answers.
    with os.fdopen(os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600), "ab") as file:
        file.write(msgspec.json.encode(comparison) + b"\n")


def read_runs(path: Path) -> list[ComparisonRun]:
    """Return the runs, oldest first. A line that was not written to its end is left out. Raises OSError."""
    if not path.exists():
        return []
    found: list[KeptComparison] = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=KeptComparison))
        except msgspec.MsgspecError:
            continue
    runs: dict[int, list[KeptComparison]] = {}
    for each in found:
        runs.setdefault(each.at, []).append(each)
    return [ComparisonRun(at, each[0].model, each) for at, each in sorted(runs.items())]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"${value:.4f}"


SERIES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "first_token_ms": ("first token", _ms),
    "total_ms": ("total", _ms),
    "cited": ("sentences cited", _percent),
    "output_tokens": ("tokens out", _number),
    "cost": ("cost", _dollars),
}
"""The figures that are followed over time: their names and how they are shown."""


def render_page(runs: Sequence[ComparisonRun]) -> str:
    """Return a page of HTML with a chart of each figure and a table of all runs. It loads nothing."""
    charts = "".join(_chart(runs, figure, title, show) for figure, (title, show) in SERIES.items())
    heads = "".join(f"<th colspan=2>{title}</th>" for title, _ in SERIES.values())
    modes = "".join(f"<th>{mode}</th>" for _ in SERIES for mode in MODES)
    rows = "".join(_row(run) for run in reversed(runs))
    legend = "".join(f'<span class="{mode}">{mode}</span>' for mode in MODES)
    return _PAGE.format(charts=charts, heads=heads, modes=modes, rows=rows, legend=legend)


def _row(run: ComparisonRun) -> str:
    cells = "".join(
        f"<td>{show(run.mean(mode, figure))}</td>" for figure, (_, show) in SERIES.items() for mode in MODES
    )
    questions = html.escape("\n".join(each.question for each in run.comparisons))
    model = html.escape(run.model or "none")
    return f'<tr><td>{run.time}</td><td>{model}</td><td title="{questions}">{len(run.comparisons)}</td>{cells}</tr>'


_WIDTH, _HEIGHT, _MARGIN = 640, 150, 14


def _chart(runs: Sequence[ComparisonRun], figure: str, title: str, show: Callable[[float | None], str]) -> str:
    """Return a line for each mode, with a point for each run; nothing if no value is known."""
    values = {mode: [run.mean(mode, figure) for run in runs] for mode in MODES}
    known = [value for line in values.values() for value in line if value is not None]
    if not known:
        return ""
    top = max(known) or 1.0
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(runs) - 1)

    def point(index: int, value: float) -> tuple[float, float]:
        return _MARGIN + index * step, _HEIGHT - _MARGIN - value / top * (_HEIGHT - 2 * _MARGIN)

    lines = ""
    for mode, line in values.items():
        points = [(*point(index, value), value, runs[index]) for index, value in enumerate(line) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in points)
        lines += f'<polyline class="{mode}" points="{path}"/>'
        for x, y, value, run in points:
            note = f"<title>{run.time}, {mode}: {show(value)}</title>"
            lines += f'<circle class="{mode}" cx="{x:.1f}" cy="{y:.1f}" r="4">{note}</circle>'
    return (
        f"<figure><figcaption>{title}<span>0 to {show(top)}</span></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title} by run">{lines}</svg></figure>'
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Synthesis and direct answers over time</title>
<style>
:root {{ color-scheme: light dark; --synthesis: #0f6b5c; --direct: #b35c1e; --line: #8884; }}
@media (prefers-color-scheme: dark) {{ :root {{ --synthesis: #6cc7b4; --direct: #e6a06a; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 32px auto; padding: 0 20px; }}
h1 {{ font-size: 1.4rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(320px, 1fr)); gap: 16px; }}
figure {{ margin: 0; padding: 12px; border: 1px solid var(--line); border-radius: 12px; }}
figcaption {{ display: flex; justify-content: space-between; }}
figcaption span, .legend {{ opacity: .8; font-size: .85rem; }}
svg {{ width: 100%; }}
polyline {{ fill: none; stroke-width: 2; }}
polyline.synthesis {{ stroke: var(--synthesis); }}
polyline.direct {{ stroke: var(--direct); }}
circle.synthesis {{ fill: var(--synthesis); }}
circle.direct {{ fill: var(--direct); }}
.legend span {{ margin-right: 16px; }}
.legend span::before {{ content: "● "; }}
.legend .synthesis::before {{ color: var(--synthesis); }}
.legend .direct::before {{ color: var(--direct); }}
.table {{ overflow-x: auto; margin-top: 24px; }}
table {{ border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 5px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }}
th:first-child, td:first-child, td:nth-child(2) {{ text-align: left; }}
</style>
<h1>Synthesis and direct answers over time</h1>
<p class="legend">{legend}</p>
<div class="charts">{charts}</div>
<div class="table"><table>
<thead><tr><th rowspan=2>run (UTC)</th><th rowspan=2>model</th><th rowspan=2>questions</th>{heads}</tr>
<tr>{modes}</tr></thead>
<tbody>{rows}</tbody>
</table></div>
</html>
"""
