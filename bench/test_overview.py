"""Tests of the verdicts: met or missed by the median of the ratios, and none on a busy machine."""

from bench.overview import TARGETS, as_history_row, as_overview
from bench.results import Column, Table

CASE = "yield, 32 streams"
STEADY = {"yardstick_ms": 12.0, "yardstick_wait": 0.01}


def streams(costs: dict[str, list[float]], **yardstick: float) -> Table:
    table = Table("streams", "streams", Column("us_per_event", "µs/event"), against=("raw",))
    for name, values in costs.items():
        for value in values:
            table.add(CASE, name, {"us_per_event": value, **STEADY, **yardstick})
    return table


def line(table: Table) -> str:
    return next(line for line in as_overview([table]).splitlines() if line.startswith("| one by one"))


def test_ratio_is_taken_within_a_repeat_and_its_median_is_compared() -> None:
    costs = {"raw": [10.0, 20.0, 10.0], "memory": [9.0, 18.0, 30.0], "sqlite": [8.0, 16.0, 8.0]}
    cells = [cell.strip() for cell in line(streams(costs)).split("|")]
    assert cells[3] == "0.90 [0.90–3.00] ≤ 0.95, met"
    assert cells[4] == "0.80 [0.80–0.80] ≤ 0.7, **missed**"
    assert cells[5] == "–"


def test_busy_machine_gets_no_verdict() -> None:
    table = streams({"raw": [10.0], "memory": [9.0]}, yardstick_wait=0.5)
    assert "0.90 [0.90–0.90] ≤ 0.95, no verdict" in line(table)
    assert "one by one, 32 streams: no verdict, the machine is too busy" in as_overview([table])


def test_uneven_machine_gets_no_verdict() -> None:
    table = streams({"raw": [10.0] * 5, "memory": [9.0] * 5})
    for sample in table.rows[1].samples:
        sample["yardstick_ms"] *= 2
    assert "no verdict" in line(table)


def test_history_row_has_a_cell_for_each_case_and_marks_doubtful_figures() -> None:
    table = streams({"raw": [10.0], "memory": [9.0], "sqlite": [8.0], "postgres": [7.0]})
    row = as_history_row([table], "abc1234", "2026-11-16")
    assert row.startswith("| 2026-11-16 | abc1234 | 0.90 / 0.80 / 0.70 |")
    assert row.count("|") == len({target.title for target in TARGETS}) + 3
    busy = streams({"raw": [10.0], "memory": [9.0]}, yardstick_wait=0.5)
    assert "| 0.90? / – / – |" in as_history_row([busy], "abc1234", "2026-11-16")
