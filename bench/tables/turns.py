"""Short turns, many at once: what a turn costs beside its tokens."""

from bench.job import Job
from bench.plan import CLIENT, Plan, chat, take_turns
from bench.processes import Server, measured
from bench.results import Column, Sample, Table
from bench.sources import Order

LENGTHS = (1, 20)
STREAMS = 32


def turns(plan: Plan) -> Table:
    table = Table(
        "turns",
        f"Short turns, {STREAMS} at a time: server CPU a turn, from the request to the last byte",
        Column("us_per_turn", "µs/turn", 0),
        against=("queue", "raw"),
        others=(Column("turns_per_second", "turns/s", 0), CLIENT),
    )
    for tokens in LENGTHS:
        measure_case(table, plan, tokens)
    return table


def measure_case(table: Table, plan: Plan, tokens: int) -> None:
    order = Order("yield", tokens)

    def job(server: Server) -> Job:
        return chat(server, order, STREAMS, seconds=plan.scale.seconds)

    def run(server: Server) -> Sample:
        sample = measured(server, job(server))
        return sample | {
            "us_per_turn": sample["us_per_event"] * tokens,
            "turns_per_second": sample["events_per_second"] / tokens,
        }

    take_turns(
        plan,
        table,
        case_name(tokens),
        plan.of("raw", "queue", "memory", "sqlite", "postgres"),
        run=run,
    )


def case_name(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens} tokens"
