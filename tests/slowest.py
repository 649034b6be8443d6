"""Says at the end of a run what took longest: the slowest tests, and the files that took most in sum."""

from collections import Counter
from typing import Any

_MOST = 15
# A run of a few tests needs no statistics.
_FEWEST_SECONDS = 20.0


def report_slowest(reporter: Any) -> None:
    """`reporter` is pytest's terminal reporter. The times of set-up and tear-down count for their test."""
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for reports in reporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) in ("setup", "call", "teardown"):
                tests[report.nodeid] += report.duration
                files[report.nodeid.partition("::")[0]] += report.duration
    if sum(tests.values()) < _FEWEST_SECONDS:
        return
    for title, times in (("tests", tests), ("files", files)):
        reporter.section(f"slowest {title}")
        for name, seconds in times.most_common(_MOST):
            reporter.write_line(f"{seconds:7.1f} s  {name}")
