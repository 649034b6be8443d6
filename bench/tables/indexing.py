"""Indexing of documents without embeddings, on one core.

The times are those of the whole case, so the ratio holds although the rows differ: Turnwire writes passages, the
baseline paragraphs.
"""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import measure
from bench.corpus import write_files
from bench.indexes import bare_table, cut_documents, opened_library, read_folder, word_rows
from bench.plan import Plan, record
from bench.processes import SERVER_CORE, BenchError
from bench.results import Column, Sample, Table

CUT = "parsed documents"
FILES = "Markdown files"
AGAIN = "Markdown files, nothing changed"

Work = Callable[[], int | None]


def indexing(plan: Plan) -> Table:
    table = Table(
        "indexing",
        f"{plan.scale.files} Markdown files into the index, without embeddings, on one core",
        Column("cpu_ms", "CPU ms", 0),
        against=("fts5",),
        others=(
            Column("rows", "rows", 0),
            Column("rows_per_cpu_second", "rows/CPU s", 0),
            Column("files_per_cpu_second", "files/CPU s", 0),
            Column("ms", "ms", 0),
            Column("rows_per_second", "rows/s", 0),
            Column("files_per_second", "files/s", 0),
        ),
        subject="index",
    )
    with TemporaryDirectory(prefix="bench-") as path, measure.pinned(SERVER_CORE):
        folder = Path(path)
        write_files(folder, plan.scale.files, plan.scale.sections)
        measure_cut(table, plan, folder)
        measure_files(table, plan, folder)
    return table


def measure_cut(table: Table, plan: Plan, folder: Path) -> None:
    """Measure the writes alone: the baseline gets the rows of the library's own table."""
    if plan.case not in CUT:
        return
    documents = cut_documents(folder)
    with opened_library() as library:
        library.put(documents)
        rows = word_rows(library)
    for _ in range(plan.scale.repeats):
        for name in plan.of("fts5", "library"):
            with ExitStack() as stack:
                if name == "fts5":
                    bare = stack.enter_context(bare_table())
                    sample = clocked(lambda bare=bare: bare.put(rows), plan)
                else:
                    library = stack.enter_context(opened_library())
                    sample = clocked(lambda library=library: library.put(documents), plan, len(rows))
            record(table, CUT, name, sample)


def measure_files(table: Table, plan: Plan, folder: Path) -> None:
    """Measure files (in the page cache) to a committed index, and a second run without changes."""
    cases = [case for case in (FILES, AGAIN) if plan.case in case]
    for _ in range(plan.scale.repeats if cases else 0):
        samples: dict[str, dict[str, Sample]] = {}
        for name in plan.of("fts5", "library"):
            with ExitStack() as stack:
                samples[name] = both_readings(stack, name, folder, plan)
        for case in cases:
            for name, readings in samples.items():
                record(table, case, name, readings[case])


def both_readings(stack: ExitStack, name: str, folder: Path, plan: Plan) -> dict[str, Sample]:
    if name == "fts5":
        bare = stack.enter_context(bare_table())
        return {
            FILES: clocked(lambda: bare.read(folder), plan),
            AGAIN: clocked(lambda: bare.read_again(folder), plan),
        }
    library = stack.enter_context(opened_library())
    samples = {FILES: clocked(lambda: read_folder(library, folder), plan)}
    if library.count() != (plan.scale.files, samples[FILES]["rows"]):
        raise BenchError(f"of {plan.scale.files} files the library holds {library.count()[0]}")
    samples[AGAIN] = clocked(lambda: read_folder(library, folder) or None, plan)
    if "rows" in samples[AGAIN]:
        raise BenchError("files that had not changed were indexed again")
    return samples


def clocked(work: Work, plan: Plan, rows: int | None = None) -> Sample:
    """Measure some work; `rows` is the number of rows that it wrote, if it does not return it."""
    gc.collect()
    yardstick = measure.Yardstick(SERVER_CORE)
    cpu, started = time.process_time(), time.perf_counter()
    rows = work() or rows
    seconds = time.perf_counter() - started
    used = time.process_time() - cpu
    sample = {
        "cpu_ms": used * 1000,
        "ms": seconds * 1000,
        "files_per_cpu_second": plan.scale.files / used,
        "files_per_second": plan.scale.files / seconds,
        **yardstick.result(),
    }
    if rows is None:
        return sample
    return sample | {"rows": rows, "rows_per_cpu_second": rows / used, "rows_per_second": rows / seconds}
