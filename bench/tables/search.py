"""The time of a search, beside the same MATCH on a bare FTS5 table."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import measure
from bench.corpus import questions, write_files
from bench.indexes import LIMIT, BareTable, as_match, bare_table, opened_library, read_folder, word_rows
from bench.plan import P50, P95, P99, Plan, record
from bench.processes import SERVER_CORE, BenchError
from bench.results import Column, Sample, Table, quantiles
from turnwire.retrieval.index.sqlite import SqliteLibrary


def search(plan: Plan) -> Table:
    with TemporaryDirectory(prefix="bench-") as folder, opened_library() as library, bare_table() as bare:
        write_files(Path(folder), plan.scale.files, plan.scale.sections)
        read_folder(library, Path(folder))
        passages = bare.put(word_rows(library))
        table = Table(
            "search",
            f"The best {LIMIT} of {passages} passages for a question of eight words",
            P50,
            against=("fts5",),
            others=(P95, P99, Column("cpu_p50_ms", "CPU p50 ms", 2)),
            subject="index",
        )
        with measure.pinned(SERVER_CORE):
            ask_in_turns(table, plan, library, bare)
    return table


def ask_in_turns(table: Table, plan: Plan, library: SqliteLibrary, bare: BareTable) -> None:
    texts = questions(plan.scale.searches)
    matches = [as_match(question) for question in texts]
    check(library, bare, texts, matches)
    searches: dict[str, Callable[[int], object]] = {
        "fts5": lambda n: bare.search(matches[n]),
        "library": lambda n: library.search(texts[n], limit=LIMIT),
    }
    names = plan.of(*searches)
    case = f"{len(texts)} questions"
    for _ in range(plan.scale.repeats if plan.case in case else 0):
        times: dict[str, list[float]] = {name: [] for name in names}
        used: dict[str, list[float]] = {name: [] for name in names}
        yardstick = measure.Yardstick(SERVER_CORE)
        for n in range(len(texts)):
            for name in names:
                cpu, started = time.thread_time(), time.perf_counter()
                searches[name](n)
                times[name].append((time.perf_counter() - started) * 1000)
                used[name].append((time.thread_time() - cpu) * 1000)
        steadiness = yardstick.result()
        for name in names:
            cpu = {"cpu_p50_ms": quantiles(used[name])["p50"]}
            record(table, case, name, latencies(times[name]) | cpu | steadiness)


def check(library: SqliteLibrary, bare: BareTable, texts: Sequence[str], matches: Sequence[str]) -> None:
    """Check that both find passages with the same scores, which also warms their caches."""
    for question, match in zip(texts, matches, strict=True):
        ours = [round(passage.score, 6) for passage in library.search(question, limit=LIMIT)]
        if ours != [round(-score, 6) for _, score in bare.search(match)]:
            raise BenchError(f"the library and the bare table find different passages for {question!r}")


def latencies(times: list[float]) -> Sample:
    return {f"latency_{name}_ms": value for name, value in quantiles(times).items()}
