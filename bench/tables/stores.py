"""The events per second that a store commits, of many turns at once, without wire and socket.

The agents yield as fast as the store allows. PostgreSQL runs on this machine, with the default `fsync` and
`synchronous_commit`, and shares the cores.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.plan import RATE, Plan, record
from bench.processes import shared_database
from bench.results import Column, Table
from bench.store_load import TURNS, write_all_turns
from turnwire.core.contracts.stores import Store
from turnwire.stores.memory import MemoryStore
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteStore


def stores(plan: Plan) -> Table:
    table = Table(
        "stores",
        f"{TURNS} turns at once, committed as fast as the store takes them",
        RATE,
        against=("sqlite",),
        others=(Column("us_per_event", "our CPU µs/event", 2),),
        subject="store",
    )
    names = plan.of("memory", "sqlite", "postgres")
    for _ in range(plan.scale.repeats):
        for name in names:
            with TemporaryDirectory(prefix="bench-") as folder:
                store = _store(name, Path(folder))
                record(table, f"{TURNS} turns", name, asyncio.run(write_all_turns(store, plan.scale.tokens)))
    return table


def _store(name: str, folder: Path) -> Store:
    if name == "memory":
        return MemoryStore()
    if name == "sqlite":
        return SqliteStore(folder)
    database = shared_database()
    return PostgresStore(database.url(database.new_database()))
