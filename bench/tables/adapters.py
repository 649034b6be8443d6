"""The CPU time per token that Turnwire adds to an SDK's own streaming loop, and that the journal adds to a turn."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench import measure
from bench.plan import Plan, record
from bench.processes import CLIENT_CORE, SERVER_CORE, BenchError
from bench.results import Column, Table
from bench.sdk_comparison import ADAPTER_WAYS, JOURNAL_WAYS, SDKS


def adapters(plan: Plan) -> Table:
    title = f"answers of {plan.scale.tokens} tokens from a model's server: the SDK's own loop, and as a turn (memory)"
    return compare(plan, "adapter", _table("adapters", title, ADAPTER_WAYS), ADAPTER_WAYS)


def journal(plan: Plan) -> Table:
    """Return the cost of the journal: turns of the same agent with one and without, on SQLite."""
    title = f"turns of {plan.scale.tokens} tokens on SQLite: without a journal, and with one"
    return compare(plan, "journal", _table("journal", title, JOURNAL_WAYS), JOURNAL_WAYS)


def _table(name: str, title: str, ways: tuple[str, str]) -> Table:
    added = Column("added_us", "added µs/token", 1)
    return Table(name, title, Column("us_per_token", "µs/token", 1), (ways[0],), (added,), subject="way")


def compare(plan: Plan, what: str, table: Table, ways: tuple[str, str]) -> Table:
    """Measure every SDK in two ways, which take turns, when all of them are loaded."""
    labels = {name: label for name, (label, _) in SDKS.items() if plan.includes(table.name, label)}
    with ExitStack() as stack:
        port = stack.enter_context(model_server(plan.scale.tokens))
        processes = {name: stack.enter_context(_sdk_process(plan, name, what, port)) for name in labels}
        for name, process in processes.items():
            _read(process, labels[name])
        for name, process in processes.items():
            _compare_sdk(plan, table, process, labels[name], ways)
    return table


@contextmanager
def _sdk_process(plan: Plan, name: str, what: str, port: int) -> Iterator["subprocess.Popen[str]"]:
    scale = {
        "port": port,
        "core": SERVER_CORE,
        "tokens": plan.scale.tokens,
        "turns": plan.scale.sdk_turns,
        "repeats": plan.scale.repeats,
    }
    options = [part for key, value in scale.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "bench.sdk_comparison", name, what, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _read(process: "subprocess.Popen[str]", label: str) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise BenchError(f"{label} could not be measured; see its output above")
    return line


def _compare_sdk(plan: Plan, table: Table, process: "subprocess.Popen[str]", label: str, ways: tuple[str, str]) -> None:
    assert process.stdin is not None
    yardstick = measure.Yardstick(SERVER_CORE)
    process.stdin.write("\n")
    process.stdin.flush()
    costs: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(len(ways) * plan.scale.repeats):
        sample = json.loads(_read(process, label))
        costs[sample["name"]].append(sample["us_per_token"])
    # Its own end would take the core from the yardstick.
    process.kill()
    process.wait()
    work = yardstick.result()
    for first, second in zip(*costs.values(), strict=True):
        record(table, label, ways[0], {"us_per_token": first} | work)
        record(table, label, ways[1], {"us_per_token": second, "added_us": second - first} | work)


@contextmanager
def model_server(tokens: int) -> Iterator[int]:
    port = measure.free_port()
    options = ["--port", str(port), "--core", str(CLIENT_CORE), "--tokens", str(tokens)]
    command = [sys.executable, "-m", "bench.model_server", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise BenchError("the model server did not start")
            yield port
        finally:
            process.kill()
