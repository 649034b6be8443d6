"""Tables of samples, with their spreads and ratios.

A sample is one run of one server. Runs of the same repeat follow each other, so a ratio is taken within a repeat, and
the median over the repeats comes last.
"""

from dataclasses import dataclass, field
from statistics import median

Sample = dict[str, float]

MAX_WAIT = 0.1
"""The largest part of its time that the yardstick may wait for a core; above it, other programs shape the figures."""
MAX_UNEVENNESS = 1.4
"""The largest ratio of slow to fast yardsticks, without the tenth at either end."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def quantiles(values: list[float]) -> dict[str, float]:
    ranked = sorted(values)
    return {name: ranked[int((len(ranked) - 1) * q)] for name, q in QUANTILES.items()} if ranked else {}


@dataclass(frozen=True)
class Column:
    """A quantity of samples, and its heading."""

    key: str
    heading: str
    digits: int = 1


@dataclass(frozen=True)
class Spread:
    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One server in one case, with one sample per repeat."""

    case: str
    variant: str
    samples: list[Sample] = field(default_factory=list[Sample])

    def spread(self, key: str) -> Spread | None:
        values = [sample[key] for sample in self.samples if key in sample]
        return Spread.of(values) if values else None


@dataclass(frozen=True)
class Table:
    """Rows to compare by their `main` column, as ratios to the servers named in `against`."""

    name: str
    title: str
    main: Column
    against: tuple[str, ...] = ()
    others: tuple[Column, ...] = ()
    rows: list[Row] = field(default_factory=list[Row])
    subject: str = "server"
    """The heading of the row names."""

    def add(self, case: str, variant: str, sample: Sample) -> None:
        row = self.row(case, variant)
        if row is None:
            row = Row(case, variant)
            self.rows.append(row)
        row.samples.append(sample)

    def row(self, case: str, variant: str) -> Row | None:
        return next((r for r in self.rows if (r.case, r.variant) == (case, variant)), None)

    def trouble(self, case: str | None = None) -> str | None:
        """Return why the samples, of one case or of all, are no basis for a verdict; None if they are."""
        samples = [sample for row in self.rows if case in (None, row.case) for sample in row.samples]
        waits = [sample["yardstick_wait"] for sample in samples if "yardstick_wait" in sample]
        speeds = sorted(sample["yardstick_ms"] for sample in samples if "yardstick_ms" in sample)
        if waits and (share := sum(waits) / len(waits)) > MAX_WAIT:
            return f"the machine is too busy: the yardstick waited {share:.0%} of its time for a core"
        if speeds and (unevenness := speeds[len(speeds) * 9 // 10] / speeds[len(speeds) // 10]) > MAX_UNEVENNESS:
            return f"the machine is too uneven: the same work took {unevenness:.1f} times the CPU in some runs"
        return None

    def ratio(self, row: Row, baseline: str) -> Spread | None:
        base = self.row(row.case, baseline)
        if base is None:
            return None
        pairs = zip(row.samples, base.samples, strict=False)
        return Spread.of([ours[self.main.key] / theirs[self.main.key] for ours, theirs in pairs])
