"""One turn that many readers follow live."""

from bench.plan import CLIENT, COST, P50, P99, RATE, Plan, take_turns
from bench.processes import Server, measured
from bench.results import Sample, Table
from bench.sources import Order


def fanout(plan: Plan) -> Table:
    table = Table(
        "fan-out",
        f"One turn, {plan.scale.readers} readers: server CPU a delivered token",
        COST,
        against=("queue_fanout",),
        others=(RATE, P50, P99, CLIENT),
    )
    for kind in ("yield", "burst8", "paced"):
        measure_case(table, plan, kind)
    return table


def measure_case(table: Table, plan: Plan, kind: str) -> None:
    order = plan.order(kind, gated=True)
    small = Order("burst8", 100, gated=True)
    take_turns(
        plan,
        table,
        kind,
        plan.of("queue_fanout", "memory", "sqlite"),
        run=lambda server: broadcast(server, order, plan.scale.readers),
        warm_up=lambda server: broadcast(server, small, 8),
    )


def broadcast(server: Server, order: Order, readers: int) -> Sample:
    """Measure a turn that waits at the gate until all its readers are connected."""
    server.post("/bench/shut")
    session = server.post("/v1/sessions")["id"]
    turn = server.post(f"/v1/sessions/{session}/turns", {"message": str(order)})["turn_id"]
    return measured(
        server,
        server.job(
            f"/v1/turns/{turn}/events",
            streams=readers,
            tokens=order.count,
            stamped=order.stamped,
            hold=True,
            go="/bench/go",
        ),
    )
