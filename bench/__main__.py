"""Measure Turnwire against hand-written servers: `python -m bench --quick` compares all targets in three minutes."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.overview import as_history_row, as_overview, measure_targets
from bench.plan import FULL, QUICK, Plan, Scale
from bench.processes import BenchError
from bench.report import Setting, as_json, as_markdown
from bench.results import Table
from bench.subjects import SUBJECTS
from bench.tables import TABLES


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller loads; without --only, the targets in one table")
    parser.add_argument("--only", action="append", choices=TABLES, help="only this table (repeatable)")
    parser.add_argument("--case", default="", metavar="TEXT", help="only the cases whose name contains TEXT")
    parser.add_argument("--variants", help=f"only these servers and indexes, of {','.join(SUBJECTS)}")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each server in each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to this file")
    parser.add_argument(
        "--history", type=Path, metavar="FILE", help="append the targets' figures as a row to this file"
    )
    options = parser.parse_args()
    unknown = set((options.variants or "raw").split(",")) - set(SUBJECTS)
    if unknown:
        parser.error(f"no such server or index: {', '.join(sorted(unknown))}")
    if options.repeats is not None and options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def main() -> int:
    if not sys.platform.startswith("linux"):
        print("The bench pins processes to cores and reads their CPU clocks: it needs Linux.", file=sys.stderr)
        return 2
    options = arguments()
    scale = QUICK if options.quick else FULL
    if options.repeats:
        scale = replace(scale, repeats=options.repeats, start_repeats=options.repeats)
    setting = Setting.here()
    if setting.cores < 2:
        print("There is only one core, which server and client share: the figures are rough.", file=sys.stderr)
    if os.getloadavg()[0] > 1:
        print("The machine is busy: trust the ratios to queue more than those to raw.", file=sys.stderr)

    tables: list[Table] = []
    shows_targets = options.quick and not (options.only or options.case or options.variants)
    try:
        for table in measure_targets(scale) if shows_targets else measure_tables(options, scale):
            tables.append(table)
            # After each table, so that a later failure loses nothing.
            write(options, setting, tables)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.markdown:
        print(as_markdown(setting, tables), end="\n" if shows_targets else "")
    if shows_targets:
        print(as_overview(tables), end="")
    if options.history:
        with options.history.open("a") as history:
            history.write(as_history_row(tables, current_commit(), time.strftime("%Y-%m-%d")))
    return 0


def measure_tables(options: argparse.Namespace, scale: Scale) -> Iterator[Table]:
    variants = frozenset(options.variants.split(",") if options.variants else SUBJECTS)
    for name in options.only or TABLES:
        yield TABLES[name](Plan(scale, variants, options.case))


def current_commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() or "unknown"


def write(options: argparse.Namespace, setting: Setting, tables: list[Table]) -> None:
    if options.json:
        options.json.write_text(as_json(setting, tables))
    if options.markdown:
        options.markdown.write_text(as_markdown(setting, tables))


if __name__ == "__main__":
    sys.exit(main())
