"""A turn's timeline as an SVG picture, and as an HTML page around it. Both stand alone, without scripts."""

from collections.abc import Iterable
from html import escape

from turnwire.reporting.timeline import Bar, Scale, Timeline, duration_text, shorten

WIDTH = 1000
_LABEL = 210
_RIGHT = 96
_ROW = 26
_TOP = 96
_SLICES = 160
_CHART = WIDTH - _LABEL - _RIGHT

_STYLE = """
.ground{fill:#fff}.text{fill:#1c2330}.faint{fill:#667085}.grid{stroke:#e4e7ec}.rule{stroke:#cbd2dc}
.queued{fill:#98a2b3}.thinking{fill:#7ba7e0}.tools,.tool{fill:#e0a63a}.answering,.tokens{fill:#3f9d6b}
.model{fill:#7ba7e0}.reasoning{fill:#98a2b3}.agent{fill:#86b98f}
.waiting,.wait{fill:#a472c8}.search{fill:#2fa3b5}.review{fill:#5b7fd1}.failed{fill:#d64545}.void{fill:#c4cad4}
.silence{fill:#d64545;fill-opacity:.13}.rate{fill:#3f9d6b;fill-opacity:.3;stroke:#3f9d6b;stroke-width:1.2}
text{font:12px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}.big{font-size:16px;font-weight:600}
.small{font-size:11px}.right{text-anchor:end}.middle{text-anchor:middle}
@media(prefers-color-scheme:dark){.ground{fill:#12161d}.text{fill:#e6e9ef}.faint{fill:#98a2b3}.grid{stroke:#262d38}
.rule{stroke:#3a4352}.void{fill:#4a5361}}
"""
_PAGE_STYLE = """
:root{color-scheme:light dark}body{margin:2rem auto;max-width:1000px;padding:0 1rem;
font:15px/1.5 system-ui,'Segoe UI',Helvetica,Arial,sans-serif;background:light-dark(#fff,#12161d);
color:light-dark(#1c2330,#e6e9ef)}svg{width:100%;height:auto}table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid light-dark(#e4e7ec,#262d38)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}th{font-weight:600;color:#667085}h2{font-size:1rem;
margin-top:2rem}
"""


def svg(line: Timeline) -> str:
    """Return the picture as an SVG document."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_SvgPicture(line).draw()}\n'


def page(line: Timeline) -> str:
    """Return an HTML page with the picture, and its numbers in tables."""
    steps = [
        ("· " * bar.depth + bar.name, bar.kind, bar.state, duration_text(bar.began), duration_text(bar.ms))
        for bar in line.bars
    ]
    silences = [(duration_text(silence.began), duration_text(silence.ms)) for silence in line.silences]
    milestones = [(duration_text(milestone.at), milestone.text) for milestone in line.milestones]
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>Turn {escape(line.turn_id)}</title><style>{_PAGE_STYLE}</style></head><body>\n",
            _SvgPicture(line).draw(),
            _table("Steps", ("step", "kind", "state", "began after", "took"), steps),
            _table("Pauses of a second or more", ("began after", "lasted"), silences),
            _table("Events", ("after", "event"), milestones),
            "\n</body></html>\n",
        )
    )


def _table(title: str, head: Iterable[str], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2>\n<table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table>\n"


class _SvgPicture:
    def __init__(self, line: Timeline) -> None:
        self._line = line
        self._scale = Scale(line)
        self._parts: list[str] = []
        self._y = _TOP

    def draw(self) -> str:
        line = self._line
        rows = 1 + len(line.bars) + (2 if line.tokens.count else 0)
        height = _TOP + rows * _ROW + 54
        self._add(f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>')
        self._head()
        self._silences(_TOP - 6, rows * _ROW + 8)
        self._axis(_TOP - 6, rows * _ROW + 8)
        self._phases()
        for bar in line.bars:
            self._bar(bar)
        if line.tokens.count:
            self._rate()
        self._legend(height - 22)
        title = f"Turn {line.turn_id}: {line.status}, {line.length_text}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style>\n' + "\n".join(self._parts) + "\n</svg>"
        )

    def _add(self, part: str) -> None:
        self._parts.append(part)

    def _text(self, x: float, y: float, text: str, style: str = "text") -> None:
        self._add(f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>')

    def _x(self, ms: float) -> float:
        return _LABEL + self._scale(ms) * _CHART

    def _head(self) -> None:
        line = self._line
        self._text(20, 30, f"{line.agent}: {line.status_text}, {line.length_text}", "text big")
        self._text(20, 50, f"turn {line.turn_id} · {line.accepted_text} · {line.events} events", "faint")
        facts = line.latency_texts
        if line.tokens.count:
            speed = f" at {line.tokens.per_second:.0f} a second" if line.tokens.per_second else ""
            facts.append(f"{line.tokens.count} pieces of answer{speed}")
        self._text(20, 68, " · ".join(facts), "faint")

    def _axis(self, top: float, height: float) -> None:
        free = 0.0
        for at in self._scale.ticks(9):
            x = self._x(at)
            self._add(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + height}"/>')
            if x >= free:
                self._text(x, top - 4, duration_text(at), "faint small middle")
                free = x + 56
        for wait in self._scale.breaks:
            x = self._x((wait.began + wait.ended) / 2)
            self._text(x, top - 4, f"⋯ {duration_text(wait.ms)} ⋯", "faint small middle")

    def _row(self, label: str, value: str, depth: int = 0) -> float:
        """Add a row's texts and return its top."""
        y = self._y
        self._y += _ROW
        self._text(20 + 12 * depth, y + 17, shorten(label, 28 - 2 * min(depth, 9)), "text")
        self._text(WIDTH - _RIGHT + 10, y + 17, value, "faint")
        return y

    def _box(self, begin: int, end: int, y: float, style: str, title: str, height: float = 14) -> None:
        x = self._x(begin)
        width = max(self._x(end) - x, 2.5)
        self._add(
            f'<rect class="{style}" x="{x:.1f}" y="{y + (_ROW - height) / 2:.1f}" width="{width:.1f}" '
            f'height="{height}" rx="2"><title>{escape(title)}</title></rect>'
        )

    def _phases(self) -> None:
        y = self._row("phases", self._line.length_text)
        for phase in self._line.phases:
            self._box(phase.began, phase.ended, y, phase.name, f"{phase.name}, {duration_text(phase.ms)}", 18)

    def _bar(self, bar: Bar) -> None:
        y = self._row(bar.name, bar.duration_text, bar.depth)
        title = f"{bar.name}: {bar.state}, {duration_text(bar.ms)}"
        if bar.is_instant:
            x, middle = self._x(bar.began), y + _ROW / 2
            points = f"{x - 6:.1f},{middle} {x:.1f},{middle - 6} {x + 6:.1f},{middle} {x:.1f},{middle + 6}"
            self._add(f'<polygon class="{bar.style}" points="{points}"><title>{escape(title)}</title></polygon>')
        else:
            self._box(bar.began, bar.ended, y, bar.style, title)

    def _rate(self) -> None:
        tokens = self._line.tokens
        y = self._row("pieces a second", f"{tokens.per_second:.0f}/s" if tokens.per_second else f"{tokens.count}")
        self._y += _ROW
        bottom = y + 2 * _ROW - 6
        points = [f"M{_LABEL},{bottom}"]
        for number, rate in enumerate(self._scale.token_rates(_SLICES)):
            level = bottom - rate * (2 * _ROW - 12)
            points.append(f"L{_LABEL + number * _CHART / _SLICES:.1f},{level:.1f}")
            points.append(f"L{_LABEL + (number + 1) * _CHART / _SLICES:.1f},{level:.1f}")
        self._add(f'<path class="rate" d="{"".join(points)}L{_LABEL + _CHART},{bottom}Z"/>')

    def _silences(self, top: float, height: float) -> None:
        for silence in self._line.silences:
            x = self._x(silence.began)
            width = max(self._x(silence.ended) - x, 2)
            title = escape(f"nothing for {duration_text(silence.ms)}")
            self._add(
                f'<rect class="silence" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{height}">'
                f"<title>{title}</title></rect>"
            )

    def _legend(self, y: float) -> None:
        x = 20.0
        for style, text in self._line.legend:
            self._add(f'<rect class="{style}" x="{x:.1f}" y="{y - 10}" width="12" height="12" rx="2"/>')
            self._text(x + 18, y, text, "faint")
            x += 34 + 6.6 * len(text)
