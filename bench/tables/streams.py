"""One reader per turn: the server's cost of a token, from one stream to many.

The paced cases begin when all streams are open, because the cost of a turn's start is in `turns`; at full speed turns
are so long that it does not matter.
"""

from bench.plan import CLIENT, COST, P50, P99, RATE, Plan, chat, many, take_turns
from bench.processes import Server, measured
from bench.results import Sample, Table

FULL_SPEED = [(kind, count) for kind in ("yield", "burst8") for count in (1, 32, 256)]
PACED = [("paced", 128), ("paced", 256)]
CROWD = 256


def streams(plan: Plan) -> Table:
    table = Table(
        "streams",
        "One reader a turn: server CPU a token",
        COST,
        against=("raw", "queue"),
        others=(RATE, P50, P99, CLIENT),
    )
    for kind, count in FULL_SPEED + PACED:
        measure_case(table, plan, kind, count)
    return table


def measure_case(table: Table, plan: Plan, kind: str, count: int) -> None:
    is_paced = kind == "paced"
    order = plan.order(kind, gated=is_paced, crowd=count >= CROWD)

    def run(server: Server) -> Sample:
        if is_paced:
            server.post("/bench/shut")
        return measured(server, chat(server, order, count, seconds=0 if is_paced else plan.scale.seconds))

    take_turns(
        plan,
        table,
        f"{kind}, {many(count)}",
        plan.of("raw", "queue", "fastapi_sse", "memory", "sqlite", "postgres"),
        run=run,
    )
