"""Measure Turnwire against what it replaces: `python -m bench --quick`."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from bench.plan import FULL, QUICK, Plan
from bench.report import Setting, as_json, as_markdown
from bench.results import Table
from bench.running import BenchError
from bench.subjects import SUBJECTS
from bench.tables import TABLES


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repeat of a smaller load")
    parser.add_argument("--only", action="append", choices=TABLES, help="only this table (repeatable)")
    parser.add_argument("--case", default="", metavar="TEXT", help="only the cases whose name holds TEXT")
    parser.add_argument("--variants", help=f"only these servers and indexes, of {','.join(SUBJECTS)}")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each server in each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here")
    asked = parser.parse_args()
    unknown = set((asked.variants or "raw").split(",")) - set(SUBJECTS)
    if unknown:
        parser.error(f"no such server or index: {', '.join(sorted(unknown))}")
    if asked.repeats is not None and asked.repeats < 1:
        parser.error("--repeats takes a number from 1")
    return asked


def main() -> int:
    if not sys.platform.startswith("linux"):
        print("The bench pins processes to cores and reads their CPU clocks: it needs Linux.", file=sys.stderr)
        return 2
    asked = arguments()
    scale = QUICK if asked.quick else FULL
    if asked.repeats:
        scale = replace(scale, repeats=asked.repeats)
    variants = frozenset(asked.variants.split(",") if asked.variants else SUBJECTS)
    plan = Plan(scale, variants, asked.case)
    setting = Setting.here()
    if setting.cores < 2:
        print("Only one core: server and client share it, read the figures as rough.", file=sys.stderr)
    if os.getloadavg()[0] > 1:
        print("The machine is busy: trust the ratios to queue more than those to raw.", file=sys.stderr)

    tables: list[Table] = []
    for name in asked.only or TABLES:
        try:
            tables.append(TABLES[name](plan))
        except BenchError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        # After each table: what is measured is not lost when a later one fails.
        write(asked, setting, tables)
    if not asked.markdown:
        print(as_markdown(setting, tables), end="")
    return 0


def write(asked: argparse.Namespace, setting: Setting, tables: list[Table]) -> None:
    if asked.json:
        asked.json.write_text(as_json(setting, tables))
    if asked.markdown:
        asked.markdown.write_text(as_markdown(setting, tables))


if __name__ == "__main__":
    sys.exit(main())
