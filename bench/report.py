"""Reports of the tables as Markdown and as JSON."""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from bench.results import Row, Spread, Table
from bench.subjects import SUBJECTS

PACKAGES = ("turnwire", "uvicorn", "uvloop", "httptools", "starlette", "fastapi", "msgspec", "pydantic-ai-slim")


@dataclass(frozen=True)
class Setting:
    """The environment that the figures depend on."""

    python: str
    system: str
    cores: int
    load: float
    """The machine's load average before the first run."""
    packages: dict[str, str]

    @classmethod
    def here(cls) -> "Setting":
        packages: dict[str, str] = {}
        for name in PACKAGES:
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                continue
        return cls(
            platform.python_version(),
            f"{platform.system()} {platform.machine()}",
            len(os.sched_getaffinity(0)),
            os.getloadavg()[0],
            packages,
        )


def as_json(setting: Setting, tables: list[Table]) -> str:
    return json.dumps({"setting": asdict(setting), "tables": [asdict(t) for t in tables]}, indent=1)


def as_markdown(setting: Setting, tables: list[Table]) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in setting.packages.items())
    opening = (
        f"{setting.system}, {setting.cores} cores, Python {setting.python}, {packages}; "
        f"load average before: {setting.load:.2f}. "
        "Medians over the repeats, [min–max]; a ratio is taken within a repeat."
    )
    return "\n\n".join([opening, *("\n".join(_table(table)) for table in tables)]) + "\n"


def _table(table: Table) -> Iterator[str]:
    others = [c for c in table.others if any(row.spread(c.key) for row in table.rows)]
    headings = ["case", table.subject, "n", table.main.heading]
    headings += [f"÷ {name}" for name in table.against]
    headings += [column.heading for column in others]
    yield f"### {table.title}"
    yield ""
    yield f"| {' | '.join(headings)} |"
    yield "|---|---|" + "--:|" * (len(headings) - 2)
    for row in table.rows:
        cells = [row.case, SUBJECTS[row.variant], str(len(row.samples))]
        cells.append(_spread(row.spread(table.main.key), table.main.digits))
        cells += [_ratio(table, row, name) for name in table.against]
        cells += [_middle(row.spread(column.key), column.digits) for column in others]
        yield f"| {' | '.join(cells)} |"
    yardsticks = [s["yardstick_ms"] for row in table.rows for s in row.samples if "yardstick_ms" in s]
    if yardsticks:
        spread = Spread.of(yardsticks)
        busy = table.trouble()
        yield ""
        yield (
            f"The yardstick, a fixed piece of work before and after each run, took {spread.middle:.0f} ms "
            f"of CPU [{spread.low:.0f}–{spread.high:.0f}]." + (f" **Not a result: {busy}.**" if busy else "")
        )


def _ratio(table: Table, row: Row, baseline: str) -> str:
    return "1" if row.variant == baseline else _spread(table.ratio(row, baseline), 2)


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "–"
    middle = f"{spread.middle:.{digits}f}"
    if spread.low == spread.high:
        return middle
    return f"{middle} [{spread.low:.{digits}f}–{spread.high:.{digits}f}]"


def _middle(spread: Spread | None, digits: int) -> str:
    return "–" if spread is None else f"{spread.middle:.{digits}f}"
