"""Turns at a pace, in one process and in several that share a database: what an event costs, and how old it is when read.

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
CASE = f"{TURNS} turns × {STEADY_PER_SECOND}/s"


def workers(plan: Plan) -> Table:
    table = Table(
        "workers",
        f"{TURNS} turns of {STEADY_PER_SECOND} tokens a second, each with a reader, over one, two and three processes",
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
            if plan.of("sqlite"):
                with serving(["sqlite"]) as servers:
                    record(table, CASE, "sqlite", spoken(servers["sqlite"], tokens))
            for name, (running, reading) in PLACES.items():
                if name in plan.variants:
                    with fleet(database, running, reading) as several:
                        record(table, CASE, name, several_spoken(several, name, tokens))
    finally:
        database.remove()
    return table


PLACES = {"postgres": (1, 0), "elsewhere": (1, 1), "two": (2, 0), "crossed": (2, 0)}
"""How many processes run turns, and how many are read from alone."""


def spoken(server: Server, tokens: int) -> Sample:
    return follow([(server, server)], tokens, Costing([server]))


def several_spoken(several: Fleet, name: str, tokens: int) -> Sample:
    servers = several.servers
    pairs = {
        "postgres": [(servers[0], servers[0])],
        "elsewhere": [(servers[0], servers[-1])],
        "two": list(zip(servers, servers, strict=True)),
        "crossed": list(zip(servers, reversed(servers), strict=True)),
    }[name]
    return follow(pairs, tokens, Costing(servers, several))


class Costing:
    def __init__(self, servers: list[Server], several: Fleet | None = None) -> None:
        self._servers = servers
        self._several = several

    def start(self) -> None:
        self._before = sum(server.cpu_seconds() for server in self._servers)
        self._database = self._several.database_cpu() if self._several else None

    def used(self) -> tuple[float, float]:
        """Of the servers, and of them and the database."""
        ours = sum(server.cpu_seconds() for server in self._servers) - self._before
        return ours, ours + (self._database.seconds() if self._database else 0.0)


def follow(pairs: list[tuple[Server, Server]], tokens: int, costing: Costing) -> Sample:
    """Turns that run at the first server of a pair, and are read at the second."""
    order = Order("steady", tokens, stamped=True, gated=True)
    each = TURNS // len(pairs)
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
        costing.start()
        for (runs, _), load in zip(pairs, loads, strict=True):
            runs.post("/bench/go")
            load.go_on()
        told = [load.reach("done") for load in loads]
        used, used_by_all = costing.used()
    yardsticks.append(measure.yardstick(SERVER_CORE))
    events = sum(one["events"] for one in told)
    seconds = max(one["seconds"] for one in told)
    sample = {
        "us_per_event": used / events * 1e6,
        "with_database": used_by_all / events * 1e6,
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
