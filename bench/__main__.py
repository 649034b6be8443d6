"""Measure Turnwire against hand-written servers: `python -m bench --quick`."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from bench.plan import FULL, QUICK, Plan
from bench.processes import BenchError
from bench.report import Setting, as_json, as_markdown
from bench.results import Table
from bench.subjects import SUBJECTS
from bench.tables import TABLES


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat of a smaller load")
    parser.add_argument("--only", action="append", choices=TABLES, help="only this table (repeatable)")
    parser.add_argument("--case", default="", metavar="TEXT", help="only the cases whose name contains TEXT")
    parser.add_argument("--variants", help=f"only these servers and indexes, of {','.join(SUBJECTS)}")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each server in each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to this file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to this file")
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
        scale = replace(scale, repeats=options.repeats)
    variants = frozenset(options.variants.split(",") if options.variants else SUBJECTS)
    plan = Plan(scale, variants, options.case)
    setting = Setting.here()
    if setting.cores < 2:
        print("There is only one core, which server and client share: the figures are rough.", file=sys.stderr)
    if os.getloadavg()[0] > 1:
        print("The machine is busy: trust the ratios to queue more than those to raw.", file=sys.stderr)

    tables: list[Table] = []
    for name in options.only or TABLES:
        try:
            tables.append(TABLES[name](plan))
        except BenchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        # After each table, so that a later failure loses nothing.
        write(options, setting, tables)
    if not options.markdown:
        print(as_markdown(setting, tables), end="")
    return 0


def write(options: argparse.Namespace, setting: Setting, tables: list[Table]) -> None:
    if options.json:
        options.json.write_text(as_json(setting, tables))
    if options.markdown:
        options.markdown.write_text(as_markdown(setting, tables))


if __name__ == "__main__":
    sys.exit(main())
