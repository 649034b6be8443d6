"""Paced turns in one process and in several on one database: the cost of an event, and its age when it is read.

An event's age begins at its scheduled time, so that delays of the agent count too. CPU is that of all servers, and of
the database beside it.
"""

from contextlib import ExitStack

from bench import measure
from bench.fleet import Fleet, fleet
from bench.plan import CLIENT, P50, P95, P99, Plan, record
from bench.processes import SERVER_CORE, Load, Server, serving
from bench.results import Column, Sample, Table
from bench.sources import STEADY_PER_SECOND, Order

TURNS = 200
# Half as many too, so that each of two workers has the load of one.
CASES = {TURNS // 2: ("postgres",), TURNS: ("sqlite", "postgres", "elsewhere", "two", "crossed")}
PROCESSES = {"postgres": (1, 0), "elsewhere": (1, 1), "two": (2, 0), "crossed": (2, 0)}
"""The number of processes that run turns, and of those that only have readers."""


def workers(plan: Plan) -> Table:
    table = Table(
        "workers",
        f"turns of {STEADY_PER_SECOND} tokens a second, each with a reader, in one and two processes",
        Column("us_per_event", "servers' CPU µs/event", 1),
        against=("postgres",),
        others=(
            Column("with_database", "with the database's", 1),
            P50,
            P95,
            P99,
            Column("latency_worst_ms", "worst ms", 1),
            Column("events_per_second", "events/s", 0),
            CLIENT,
        ),
    )
    tokens = plan.scale.steady_tokens
    for _ in range(plan.scale.start_repeats):
        for turns, names in CASES.items():
            case = f"{turns} turns × {STEADY_PER_SECOND}/s"
            for name in plan.of(*names) if plan.includes("workers", case) else ():
                if name == "sqlite":
                    with serving([name]) as servers:
                        record(table, case, name, follow([(servers[name], servers[name])], turns, tokens))
                else:
                    with fleet(*PROCESSES[name]) as several:
                        record(table, case, name, follow(pairs(several, name), turns, tokens, several))
    return table


def pairs(several: Fleet, name: str) -> list[tuple[Server, Server]]:
    """Return the server that runs and the server that is read, for each group of turns."""
    servers = several.servers
    match name:
        case "elsewhere":
            return [(servers[0], servers[-1])]
        case "crossed":
            return list(zip(servers, reversed(servers), strict=True))
        case _:
            return list(zip(servers, servers, strict=True))


def follow(pairs: list[tuple[Server, Server]], turns: int, tokens: int, several: Fleet | None = None) -> Sample:
    order = Order("steady", tokens, stamped=True, gated=True)
    each = turns // len(pairs)
    servers = several.servers if several else [pairs[0][0]]
    yardstick = measure.Yardstick(SERVER_CORE)
    with ExitStack() as stack:
        loads: list[Load] = []
        for runs, reads in pairs:
            runs.post("/bench/shut")
            paths = tuple(f"/v1/turns/{start_turn(runs, order)}/events" for _ in range(each))
            job = reads.job("", tokens=tokens, streams=each, stamped=True, hold=True, paths=paths)
            loads.append(stack.enter_context(Load(job)))
        for load in loads:
            load.proceed()
            load.reach("open")
        before = sum(server.cpu_seconds() for server in servers)
        database = several.database_cpu() if several else None
        for (runs, _), load in zip(pairs, loads, strict=True):
            runs.post("/bench/go")
            load.proceed()
        reports = [load.reach("done") for load in loads]
        used = sum(server.cpu_seconds() for server in servers) - before
        used_there = database.seconds() if database else 0.0
    events = sum(report["events"] for report in reports)
    seconds = max(report["seconds"] for report in reports)
    sample = {
        "us_per_event": used / events * 1e6,
        "with_database": (used + used_there) / events * 1e6,
        "events_per_second": events / seconds,
        "client_busy": sum(report["client_cpu"] for report in reports) / seconds,
        **yardstick.result(),
    }
    # The slower of two clients counts.
    for quantile in reports[0]["age_ms"]:
        sample[f"latency_{quantile}_ms"] = max(report["age_ms"][quantile] for report in reports)
    sample["latency_worst_ms"] = max(report["oldest_ms"] for report in reports)
    return sample


def start_turn(server: Server, order: Order) -> str:
    session = server.post("/v1/sessions")["id"]
    return server.post(f"/v1/sessions/{session}/turns", {"message": str(order)})["turn_id"]
