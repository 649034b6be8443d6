"""The amounts and the order of measurements.

All servers of a case run at once and take turns, so that other load of the machine affects them alike. They are new
for every case, without the logs of the case before.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from bench.job import Job
from bench.processes import Server, measured, serving
from bench.results import Column, Sample, Table
from bench.sources import Order

COST = Column("us_per_event", "µs/event", 2)
RATE = Column("events_per_second", "events/s", 0)
P50 = Column("latency_p50_ms", "latency p50 ms", 2)
P95 = Column("latency_p95_ms", "latency p95 ms", 2)
P99 = Column("latency_p99_ms", "latency p99 ms", 2)
CLIENT = Column("client_busy", "client busy", 2)


@dataclass(frozen=True)
class Scale:
    """The amounts of a run."""

    repeats: int
    start_repeats: int
    """Repeats of the cases that start new processes for each run."""
    seconds: float
    """The time in which a client opens streams, in the cases at full speed."""
    tokens: int
    crowd_tokens: int
    """Tokens per stream in the cases with 256 streams at full speed."""
    paced_tokens: int
    steady_tokens: int
    readers: int
    idle_streams: int
    idle_seconds: float
    """Longer than the time between two heartbeats, if their cost matters."""
    replay_tokens: int
    files: int
    """Markdown files to index."""
    sections: int
    """Headings in each of them."""
    searches: int
    questions: int
    """Questions over HTTP, from the evaluation's own collection."""
    page_tokens: int
    """Tokens in the answer that the web page shows."""
    sdk_turns: int
    """Answers of an SDK's agent in one sample."""


FULL = Scale(
    repeats=5,
    start_repeats=3,
    seconds=1.0,
    tokens=1000,
    crowd_tokens=1000,
    paced_tokens=250,
    steady_tokens=200,
    readers=200,
    idle_streams=5000,
    idle_seconds=20,
    replay_tokens=10_000,
    files=400,
    sections=29,
    searches=400,
    questions=112,
    page_tokens=5_000,
    sdk_turns=10,
)
QUICK = Scale(
    repeats=3,
    start_repeats=2,
    seconds=0.2,
    tokens=1000,
    crowd_tokens=200,
    paced_tokens=75,
    steady_tokens=50,
    readers=200,
    idle_streams=1000,
    idle_seconds=1,
    replay_tokens=10_000,
    files=400,
    sections=29,
    searches=100,
    questions=28,
    page_tokens=1_000,
    sdk_turns=1,
)


@dataclass(frozen=True)
class Plan:
    scale: Scale
    variants: frozenset[str]
    """The servers that may take part."""
    case: str = ""
    """Only the cases whose name contains this text."""
    cases: frozenset[tuple[str, str]] | None = None
    """Only these cases of these tables; None for all."""

    def includes(self, table: str, case: str) -> bool:
        return self.case in case and (self.cases is None or (table, case) in self.cases)

    def of(self, *names: str) -> list[str]:
        return [name for name in names if name in self.variants]

    def order(self, kind: str, *, gated: bool = False, crowd: bool = False) -> Order:
        if kind == "paced":
            return Order(kind, self.scale.paced_tokens, stamped=True, gated=gated)
        tokens = self.scale.crowd_tokens if crowd else self.scale.tokens
        return Order(kind, tokens, gated=gated)


def chat(server: Server, order: Order, streams: int, *, seconds: float = 0, rest: bool = False) -> Job:
    """Return a job whose streams start a turn each.

    Gated ones are opened before the measurement; with `rest` they are then closed instead of read.
    """
    return server.job(
        "/chat/stream",
        body=json.dumps({"message": str(order)}),
        tokens=order.count,
        stamped=order.stamped,
        streams=streams,
        seconds=seconds,
        hold=order.gated,
        go=None if rest else "/bench/go",
        leave=rest,
    )


def warm_up(server: Server) -> None:
    """Let a server that streams answers do its one-time imports and allocations."""
    measured(server, chat(server, Order("yield", 200), 8))


def take_turns(
    plan: Plan,
    table: Table,
    case: str,
    names: list[str],
    *,
    run: Callable[[Server], Sample],
    warm_up: Callable[[Server], object] = warm_up,
) -> None:
    if not plan.includes(table.name, case):
        return
    with serving(names) as servers:
        for server in servers.values():
            warm_up(server)
        for _ in range(plan.scale.repeats):
            for name, server in servers.items():
                record(table, case, name, run(server))


def many(count: int) -> str:
    return f"{count} stream" if count == 1 else f"{count} streams"


def record(table: Table, case: str, name: str, sample: Sample) -> None:
    table.add(case, name, sample)
    value = f"{sample[table.main.key]:.{table.main.digits}f} {table.main.heading}"
    print(f"{table.name}: {case}: {name}: {value}", file=sys.stderr, flush=True)
