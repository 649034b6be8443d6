"""The targets, and the one table that compares them with what was measured.

A target is a limit for one server in one case: of its ratio to another server, of its difference from it, or of the
figure itself. There is no verdict when the machine was too busy to tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.plan import Plan, Scale
from bench.results import Spread, Table
from bench.sdk_comparison import SDKS
from bench.tables import TABLES
from bench.tables.idle import OWN_TURN
from bench.tables.turns import case_name

Kind = Literal["ratio", "difference", "value"]
_STEADY = "200 turns × 20/s"


@dataclass(frozen=True)
class Target:
    """A limit for the `key` of a server's samples, taken repeat by repeat."""

    title: str
    table: str
    case: str
    variant: str
    limit: float
    baseline: str = "raw"
    kind: Kind = "ratio"
    key: str = "us_per_event"
    at_least: bool = False

    def spread(self, table: Table) -> Spread | None:
        row, base = table.row(self.case, self.variant), table.row(self.case, self.baseline)
        if row is None:
            return None
        if self.kind == "value":
            return row.spread(self.key)
        if base is None:
            return None
        pairs = [(ours[self.key], theirs[self.key]) for ours, theirs in zip(row.samples, base.samples, strict=False)]
        return Spread.of([ours / theirs if self.kind == "ratio" else ours - theirs for ours, theirs in pairs])

    def is_met(self, spread: Spread) -> bool:
        return spread.middle >= self.limit if self.at_least else spread.middle <= self.limit


def _across(title: str, table: str, case: str, limits: dict[str, float], **rest: object) -> list[Target]:
    return [Target(title, table, case, variant, limit, **rest) for variant, limit in limits.items()]  # type: ignore[arg-type]


TARGETS = [
    *_across(
        "one by one, 32 streams", "streams", "yield, 32 streams", {"memory": 0.95, "sqlite": 0.70, "postgres": 0.90}
    ),
    *_across(
        "bursts of 8, 32 streams", "streams", "burst8, 32 streams", {"memory": 0.55, "sqlite": 0.50, "postgres": 0.60}
    ),
    *_across(
        "paced 50/s, 128 streams", "streams", "paced, 128 streams", {"memory": 1.10, "sqlite": 1.40, "postgres": 1.60}
    ),
    *_across(
        "paced 50/s, 256 streams", "streams", "paced, 256 streams", {"memory": 1.10, "sqlite": 1.40, "postgres": 1.60}
    ),
    *_across(
        "append to client, one stream, p50 ms",
        "latency",
        "1 stream",
        {"memory": 0.3, "sqlite": 1.5, "postgres": 3.0},
        kind="difference",
        key="latency_p50_ms",
    ),
    *_across(
        "turn of 20 tokens",
        "turns",
        case_name(20),
        {"memory": 1.0, "sqlite": 2.0},
        baseline="queue",
        key="us_per_turn",
    ),
    *_across(
        "bytes of a running idle turn and its reader",
        "idle",
        OWN_TURN,
        {"memory": 1.4, "sqlite": 1.4},
        key="bytes_per_stream",
    ),
    Target(
        "events/s committed, 200 turns",
        "stores",
        "200 turns",
        "postgres",
        0.85,
        baseline="sqlite",
        key="events_per_second",
        at_least=True,
    ),
    Target(
        "read in another process, 4,000 events/s, p99 ms",
        "workers",
        _STEADY,
        "elsewhere",
        60,
        kind="value",
        key="latency_p99_ms",
    ),
    Target("CPU of two workers at the load of one", "workers", _STEADY, "two", 1.15, baseline="postgres"),
    *[
        Target(
            f"{label}, µs a token",
            "adapters",
            label,
            "turnwire",
            15,
            baseline="bare",
            kind="difference",
            key="us_per_token",
        )
        for label in (SDKS[name][0] for name in ("openai-agents", "langgraph", "pydantic-ai"))
    ],
]
VARIANTS = {
    "streams": ("raw", "memory", "sqlite", "postgres"),
    "latency": ("raw", "memory", "sqlite", "postgres"),
    "turns": ("queue", "memory", "sqlite"),
    "idle": ("raw", "memory", "sqlite"),
    "stores": ("sqlite", "postgres"),
    "workers": ("postgres", "elsewhere", "two"),
    "adapters": ("bare", "turnwire"),
}
"""The servers that take part, by table."""
_COLUMNS = ("memory", "sqlite", "postgres")
_AGAINST = {"raw": "raw", "queue": "the queue", "sqlite": "SQLite", "postgres": "one worker", "bare": "the SDK's loop"}


def measure_targets(scale: Scale) -> Iterator[Table]:
    """Run the cases that have a target, and yield their tables one by one."""
    cases = frozenset((target.table, target.case) for target in TARGETS)
    for name, variants in VARIANTS.items():
        yield TABLES[name](Plan(scale, frozenset(variants), cases=cases))


def as_overview(tables: list[Table]) -> str:
    """Return all targets in one table: a line per case, a column per store."""
    by_name = {table.name: table for table in tables}
    lines = [
        "| server CPU per event, unless the case says otherwise | against | memory | SQLite | PostgreSQL |",
        "|---|---|--:|--:|--:|",
    ]
    for title in dict.fromkeys(target.title for target in TARGETS):
        targets = {_column(target): target for target in TARGETS if target.title == title}
        first = next(iter(targets.values()))
        table = by_name.get(first.table)
        if table is not None:
            against = "–" if first.kind == "value" else _AGAINST[first.baseline]
            cells = [_cell(targets[name], table) if name in targets else "–" for name in _COLUMNS]
            lines.append(f"| {title} | {against} | {' | '.join(cells)} |")
    notes = dict.fromkeys(
        f"- {target.title}: no verdict, {trouble}."
        for target in TARGETS
        if (table := by_name.get(target.table)) is not None and (trouble := table.trouble(target.case))
    )
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def as_history_row(tables: list[Table], commit: str, day: str) -> str:
    """Return the medians of all targets as a row of the history in docs/research/performance.md."""
    by_name = {table.name: table for table in tables}
    cells: list[str] = []
    for title in dict.fromkeys(target.title for target in TARGETS):
        medians: list[str] = []
        for target in (each for each in TARGETS if each.title == title):
            table = by_name.get(target.table)
            spread = target.spread(table) if table is not None else None
            doubtful = table is not None and table.trouble(target.case) is not None
            medians.append("–" if spread is None else f"{_number(target, spread.middle)}{'?' if doubtful else ''}")
        cells.append(" / ".join(medians))
    return f"| {day} | {commit} | {' | '.join(cells)} |\n"


def _column(target: Target) -> str:
    if target.variant in _COLUMNS:
        return target.variant
    return "memory" if target.table == "adapters" else "postgres"


def _cell(target: Target, table: Table) -> str:
    spread = target.spread(table)
    if spread is None:
        return "–"
    sign = "≥" if target.at_least else "≤"
    verdict = "met" if target.is_met(spread) else "**missed**"
    if table.trouble(target.case):
        verdict = "no verdict"
    figures = " ".join(
        [
            _number(target, spread.middle),
            f"[{_number(target, spread.low)}–{_number(target, spread.high)}]",
        ]
    )
    return f"{figures} {sign} {target.limit:g}, {verdict}"


def _number(target: Target, value: float) -> str:
    sign = "+" if target.kind == "difference" else ""
    return f"{value:{sign}.{0 if target.kind == 'value' else 2}f}"
