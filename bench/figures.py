"""The figures of docs/research/scale.md from the simulation: `python -m bench.figures` writes docs/pictures/*.svg.

The constants were measured for that page. The same constants give the same pictures, byte for byte.
"""

from collections.abc import Callable, Sequence
from math import log10
from pathlib import Path

from bench.simulation import Cluster, Costs, most_turns, simulate

MEASURED = Costs(
    speak=7.2,
    encode=1.2,
    group=224,
    deliver=100,
    commit=313,
    commit_turn=13.5,
    commit_event=0.1,
    flush=1_350,
    hint=73,
    listener=19,
    look=160,
    look_turn=6.1,
    read=19,
)
CORES = 4
"""The cores of each database's machine."""
WORKERS = (1, 2, 4, 8, 16, 32)
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

Line = tuple[str, list[tuple[float, float]]]
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 360, 72, 44, 150, 56
_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed")


def turns_by_workers() -> str:
    lines: list[Line] = []
    for databases in (1, 2, 4):
        points = [
            (
                float(workers),
                float(most_turns(Cluster(workers, databases, CORES, elsewhere=0.1, seconds=0.4), MEASURED)),
            )
            for workers in WORKERS
        ]
        lines.append((f"{databases} database{'s' if databases > 1 else ''}", points))
    title = f"Turns of 20 events/s that are read within 100 ms (p99); databases with {CORES} cores"
    return draw_chart(title, "worker processes", "turns at once", lines)


def age_by_load(workers: int = 16) -> str:
    loads = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 96_000, 128_000, 160_000, 200_000, 250_000)
    lines: list[Line] = []
    for databases in (1, 2):
        for name in ("p50_ms", "p99_ms"):
            points: list[tuple[float, float]] = []
            for load in loads:
                cluster = Cluster(workers, databases, CORES, load // 20, elsewhere=0.1, seconds=0.6)
                age = getattr(simulate(cluster, MEASURED), name)
                if age < 1_000:
                    points.append((float(load), age))
            lines.append((f"{name[:3]}, {databases} db", points))
    title = f"How old an event is when it is sent to its reader; {workers} workers, a tenth of the readers elsewhere"
    return draw_chart(title, "events/s, all turns", "ms", lines)


def cost_by_workers() -> str:
    kinds: tuple[tuple[str, Callable[[Cluster], float]], ...] = (
        ("workers' CPU", lambda cluster: simulate(cluster, MEASURED).worker_us),
        ("database's CPU", lambda cluster: simulate(cluster, MEASURED).database_us),
    )
    lines = [
        (f"{name}, {load:,} ev/s", [(float(w), cost(Cluster(w, 1, CORES, load // 20, elsewhere=0.1))) for w in WORKERS])
        for load in (4_000, 32_000)
        for name, cost in kinds
    ]
    return draw_chart(
        "The same load on more workers: smaller groups, dearer events", "worker processes", "µs/event", lines
    )


FIGURES = {"scale-turns": turns_by_workers, "scale-age": age_by_load, "scale-cost": cost_by_workers}


def draw_chart(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """Return an SVG chart with logarithmic axes."""
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x_of = _scaled(min(xs), max(xs), _LEFT, right)
    y_of = _scaled(min(ys), max(ys), bottom, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-weight="bold">{title}</text>',
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{across}</text>',
        f'<text transform="translate(16 {(_TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">{up}</text>',
    ]
    for x in _ticks(min(xs), max(xs)):
        parts.append(_rule(x_of(x), _TOP, x_of(x), bottom))
        parts.append(f'<text x="{x_of(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x:,.0f}</text>')
    for y in _ticks(min(ys), max(ys)):
        parts.append(_rule(_LEFT, y_of(y), right, y_of(y)))
        parts.append(f'<text x="{_LEFT - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{y:,.0f}</text>')
    lowest = 0.0
    for (name, points), colour in zip(lines, _COLOURS, strict=False):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        lowest += 18
        parts.append(f'<text x="{right + 8}" y="{_TOP + lowest:.0f}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _scaled(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = log10(high / low) or 1.0
    return lambda value: start + (end - start) * log10(value / low) / span


def _ticks(low: float, high: float) -> list[float]:
    steps = [step * 10.0**power for power in range(-1, 8) for step in (1, 2, 5)]
    return [step for step in steps if low * 0.999 <= step <= high * 1.001 and step >= 1]


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e5e7eb"/>'


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (PICTURES / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
