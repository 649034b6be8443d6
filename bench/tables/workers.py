"""Turns at a pace, in one process and in several on one database: what an event costs, and how old it is when read.

An event's age begins when its agent's schedule says so, not when the agent came to it, so nothing that holds the agent
up is left out. CPU is of all servers, and of the database beside it.
"""

from contextlib import ExitStack

from bench import measure
from bench.fleet import Fleet, fleet
from bench.plan import CLIENT, P50, P95, P99, Plan, record
from bench.results import Column, Sample, Table
from bench.running import SERVER_CORE, Load, Server, serving
from bench.sources import STEADY_PER_SECOND, Order
from tests.postgres_server import PostgresServer

TURNS = 200
# Half as many too: two workers then have as much to do each as one had.
CASES = {TURNS // 2: ("postgres",), TURNS: ("sqlite", "postgres", "elsewhere", "two", "crossed")}
PLACES = {"postgres": (1, 0), "elsewhere": (1, 1), "two": (2, 0), "crossed": (2, 0)}
"""How many processes run turns, and how many are only read from."""


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
    database = PostgresServer()
    try:
        for _ in range(plan.scale.repeats):
            for turns, names in CASES.items():
                case = f"{turns} turns × {STEADY_PER_SECOND}/s"
                for name in plan.of(*names) if plan.case in case else ():
                    if name == "sqlite":
                        with serving([name]) as servers:
                            record(table, case, name, follow([(servers[name], servers[name])], turns, tokens))
                    else:
                        with fleet(database, *PLACES[name]) as several:
                            record(table, case, name, follow(pairs(several, name), turns, tokens, several))
    finally:
        database.remove()
    return table


def pairs(several: Fleet, name: str) -> list[tuple[Server, Server]]:
    """Where turns run, and where they are read."""
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
    yardsticks = [measure.yardstick(SERVER_CORE)]
    with ExitStack() as stack:
        loads: list[Load] = []
        for runs, reads in pairs:
            runs.post("/bench/shut")
            paths = tuple(f"/v1/turns/{begun(runs, order)}/events" for _ in range(each))
            job = reads.job("", tokens=tokens, streams=each, stamped=True, hold=True, paths=paths)
            loads.append(stack.enter_context(Load(job)))
        for load in loads:
            load.go_on()
            load.reach("open")
        before = sum(server.cpu_seconds() for server in servers)
        database = several.database_cpu() if several else None
        for (runs, _), load in zip(pairs, loads, strict=True):
            runs.post("/bench/go")
            load.go_on()
        told = [load.reach("done") for load in loads]
        used = sum(server.cpu_seconds() for server in servers) - before
        used_there = database.seconds() if database else 0.0
    yardsticks.append(measure.yardstick(SERVER_CORE))
    events = sum(one["events"] for one in told)
    seconds = max(one["seconds"] for one in told)
    sample = {
        "us_per_event": used / events * 1e6,
        "with_database": (used + used_there) / events * 1e6,
        "events_per_second": events / seconds,
        "client_busy": sum(one["client_cpu"] for one in told) / seconds,
        "yardstick_ms": sum(yardsticks) / 2,
    }
    # Of two clients the slower one's.
    for quantile in told[0]["age_ms"]:
        sample[f"latency_{quantile}_ms"] = max(one["age_ms"][quantile] for one in told)
    sample["latency_worst_ms"] = max(one["oldest_ms"] for one in told)
    return sample


def begun(server: Server, order: Order) -> str:
    session = server.post("/v1/sessions")["id"]
    return server.post(f"/v1/sessions/{session}/turns", {"message": str(order)})["turn_id"]
