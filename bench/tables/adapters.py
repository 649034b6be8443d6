"""The CPU time per token that Turnwire adds to an SDK's own streaming loop."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench import measure
from bench.plan import Plan, record
from bench.processes import CLIENT_CORE, SERVER_CORE, BenchError
from bench.results import Column, Table
from bench.sdk_comparison import SDKS


def adapters(plan: Plan) -> Table:
    tokens = plan.scale.tokens
    table = Table(
        "adapters",
        f"answers of {tokens} tokens from a model's server: the SDK's own loop, and the same agent as a turn (memory)",
        Column("us_per_token", "µs/token", 1),
        against=("bare",),
        others=(Column("added_us", "added µs/token", 1),),
        subject="way",
    )
    with model_server(tokens) as port:
        for name, (label, _) in SDKS.items():
            if plan.case in label:
                compare(table, plan, name, label, port)
    return table


def compare(table: Table, plan: Plan, name: str, label: str, port: int) -> None:
    scale = {"port": port, "core": SERVER_CORE, "tokens": plan.scale.tokens, "turns": 10, "repeats": plan.scale.repeats}
    options = [part for key, value in scale.items() for part in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "bench.sdk_comparison", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{label} could not be measured; see its output above")
    samples = [json.loads(line) for line in done.stdout.splitlines()]
    costs: dict[str, list[float]] = {"bare": [], "turnwire": []}
    for sample in samples:
        costs[sample["name"]].append(sample["us_per_token"])
    for bare, ours in zip(costs["bare"], costs["turnwire"], strict=True):
        record(table, label, "bare", {"us_per_token": bare})
        record(table, label, "turnwire", {"us_per_token": ours, "added_us": ours - bare})


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
