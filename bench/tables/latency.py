"""The age of a token when the client reads it, with one stream and with many."""

from bench.job import Job
from bench.plan import COST, P50, P99, Plan, chat, many, take_turns
from bench.processes import Server, measured
from bench.results import Table
from bench.sources import Order


def latency(plan: Plan) -> Table:
    table = Table(
        "latency",
        "From the agent's yield to the client's read, 50 tokens/s a stream",
        P50,
        others=(P99, COST),
    )
    for count in (1, 128):
        measure_case(table, plan, count)
    return table


def measure_case(table: Table, plan: Plan, count: int) -> None:
    order = Order("paced", plan.scale.steady_tokens, stamped=True)

    def job(server: Server) -> Job:
        return chat(server, order, count)

    take_turns(
        plan,
        table,
        many(count),
        plan.of("raw", "queue", "memory", "sqlite", "postgres"),
        run=lambda server: measured(server, job(server)),
    )
