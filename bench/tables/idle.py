"""Open streams in which nothing comes: what each keeps of the server's memory.

A stream of Turnwire is a turn that runs, so its memory is that of the turn, its agent and its
reader together. Its heartbeat beats meanwhile; the baselines have none.
"""

import time

from bench.plan import Plan, Scale, chat, record
from bench.results import Column, Sample, Table
from bench.running import Load, Server, serving
from bench.sources import Order

FOREVER = Order("yield", 1, gated=True)
WARM_STREAMS = 64
MOST_REPEATS = 3  # two runs differ by a percent; each takes a process and many sockets


def idle(plan: Plan) -> Table:
    table = Table(
        "idle",
        f"{plan.scale.idle_streams} open streams in which nothing comes: server memory a stream",
        Column("bytes_per_stream", "bytes/stream", 0),
        against=("raw", "queue"),
        others=(
            Column("idle_cpu_percent", "CPU while idle, % of a core", 2),
            Column("idle_bytes", "heartbeat bytes/stream"),
        ),
    )
    for _ in range(min(plan.scale.repeats, MOST_REPEATS)):
        for name in plan.of("raw", "queue", "memory", "sqlite"):
            # A new process each time: freed memory would be used again unseen.
            with serving([name]) as servers:
                record(table, "idle", name, rest(servers[name], plan.scale))
    return table


def rest(server: Server, scale: Scale) -> Sample:
    with Load(chat(server, FOREVER, WARM_STREAMS, rest=True)) as load:
        load.go_on()
        load.reach("open")
    time.sleep(0.5)
    before = server.resident_bytes()
    with Load(chat(server, FOREVER, scale.idle_streams, rest=True)) as load:
        load.go_on()
        opened = load.reach("open")
        cpu = server.cpu_seconds()
        time.sleep(scale.idle_seconds)
        used = server.cpu_seconds() - cpu
        after = server.resident_bytes()
        load.go_on()
        told = load.reach("done")
    return {
        "bytes_per_stream": (after - before) / scale.idle_streams,
        "idle_cpu_percent": 100 * used / scale.idle_seconds,
        "idle_bytes": (told["received_bytes"] - opened["received_bytes"]) / scale.idle_streams,
    }
