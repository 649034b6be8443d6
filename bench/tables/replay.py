"""A long ended turn, read from its start.

The first row is the first read of the turn, with nothing encoded yet. The second row is the same turn read repeatedly.
"""

from bench.plan import CLIENT, RATE, Plan, Scale, record
from bench.processes import Server, measured, serving
from bench.results import Column, Sample, Table
from bench.sources import Order


def replay(plan: Plan) -> Table:
    table = Table(
        "replay",
        f"A finished turn of {plan.scale.replay_tokens} tokens, read from its start",
        Column("us_per_event", "µs/event", 3),
        against=("memory",),
        others=(RATE, CLIENT),
    )
    with serving(plan.of("memory", "sqlite")) as servers:
        for server in servers.values():
            read_twice(server, plan.scale)
        for _ in range(plan.scale.repeats):
            for name, server in servers.items():
                for case, sample in read_twice(server, plan.scale).items():
                    record(table, case, name, sample)
    return table


def read_twice(server: Server, scale: Scale) -> dict[str, Sample]:
    order = Order("burst8", scale.replay_tokens)
    # This route answers when the turn has ended, without streaming.
    turn = server.post("/chat", {"message": str(order)})["turn_id"]

    def read(seconds: float) -> Sample:
        path = f"/v1/turns/{turn}/events"
        return measured(server, server.job(path, streams=1, tokens=order.count, seconds=seconds))

    return {"first read": read(0), "read again": read(scale.seconds)}
