"""Whether the simulation is right about what can be measured: one worker and one database on this machine.

Its costs and the compared figures are measured in the same run, on the same server.
"""

import asyncio

from bench.calibration import calibrate
from bench.plan import RATE, Plan, record
from bench.processes import shared_database
from bench.results import Column, Table
from bench.simulation import Cluster, Costs, Outcome, at_full_speed
from bench.store_load import TURNS, write_all_turns
from turnwire.stores.postgres import PostgresStore

REPEATS_OF_A_SHAPE = 30


def scale(plan: Plan) -> Table:
    table = Table(
        "scale",
        f"{TURNS} turns at full speed into one database: the simulation and the measurement",
        RATE,
        against=("postgres",),
        others=(
            Column("us_per_event", "worker's CPU µs/event", 2),
            *(Column(name, f"{name} µs", 1) for name in Costs.__annotations__),
        ),
    )
    database = shared_database()
    for _ in range(plan.scale.repeats):
        costs = asyncio.run(calibrate(database.url(database.new_database()), REPEATS_OF_A_SHAPE))
        store = PostgresStore(database.url(database.new_database()))
        record(table, f"{TURNS} turns", "postgres", asyncio.run(write_all_turns(store, plan.scale.tokens)))
        outcome = predicted(costs)
        prediction = {"events_per_second": outcome.events_per_second, "us_per_event": outcome.worker_us}
        record(table, f"{TURNS} turns", "simulation", prediction | vars(costs))
    return table


def predicted(costs: Costs) -> Outcome:
    """Predict one worker's turns at full speed, without readers."""
    return at_full_speed(Cluster(turns=TURNS, readers=0), costs)
