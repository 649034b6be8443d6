"""Ten thousand idle streams over two processes that share a database."""

import time
from contextlib import ExitStack

from bench.fleet import fleet
from bench.plan import Plan, Scale, record
from bench.processes import Load, Server, serving
from bench.results import Column, Sample, Table
from bench.tables.idle import ONE_TURN, WARM_STREAMS, one_turn, own_turns, rest


def crowd(plan: Plan) -> Table:
    streams = 2 * plan.scale.idle_streams
    table = Table(
        "crowd",
        f"{streams} idle streams over two processes: memory per stream",
        Column("bytes_per_stream", "bytes/stream", 0),
        against=("raw",),
        others=(
            Column("idle_cpu_percent", "CPU while idle, % of a core", 2),
            Column("database_cpu_percent", "database's CPU, % of a core", 2),
        ),
    )
    for _ in range(plan.scale.start_repeats):
        if plan.of("raw"):
            # Half as many in one process, where a stream costs the same.
            with serving(["raw"]) as servers:
                record(table, ONE_TURN, "raw", rest(servers["raw"], plan.scale, own_turns))
        with fleet(2) as several:
            watching = several.database_cpu()
            sample = rest_over(several.servers, plan.scale)
            sample["database_cpu_percent"] = 100 * watching.seconds() / sample["seconds"]
            record(table, ONE_TURN, "two", sample)
    return table


def rest_over(servers: list[Server], scale: Scale) -> Sample:
    for server in servers:
        with Load(one_turn(server, WARM_STREAMS)) as load:
            load.proceed()
            load.reach("open")
    time.sleep(0.5)
    began = time.monotonic()
    before = sum(server.resident_bytes() for server in servers)
    with ExitStack() as stack:
        for server in servers:
            load = stack.enter_context(Load(one_turn(server, scale.idle_streams)))
            load.proceed()
            load.reach("open")
        cpu = sum(server.cpu_seconds() for server in servers)
        time.sleep(scale.idle_seconds)
        used = sum(server.cpu_seconds() for server in servers) - cpu
        after = sum(server.resident_bytes() for server in servers)
    return {
        "bytes_per_stream": (after - before) / (len(servers) * scale.idle_streams),
        "idle_cpu_percent": 100 * used / scale.idle_seconds,
        "seconds": time.monotonic() - began,
    }
