"""Idle streams: the server memory of each.

Two cases: streams that read one turn, which measure the stream alone, and streams with a running turn each, which
include the turn, its agent and its log. Turnwire sends heartbeats meanwhile, the baselines none; their streams are
their own turns, so they have one case.
"""

import time

from bench.job import Job
from bench.plan import Plan, Scale, chat, record
from bench.processes import Load, Server, serving
from bench.results import Column, Sample, Table
from bench.sources import Order

FOREVER = Order("yield", 1, gated=True)
WARM_STREAMS = 500
"""Open while the others are measured: they take the memory that imports have left free, which differs by server."""
ONE_TURN = "a stream"
OWN_TURN = "a stream and its running turn"


def idle(plan: Plan) -> Table:
    table = Table(
        "idle",
        f"{plan.scale.idle_streams} idle streams: server memory per stream",
        Column("bytes_per_stream", "bytes/stream", 0),
        against=("raw", "queue"),
        others=(
            Column("idle_cpu_percent", "CPU while idle, % of a core", 2),
            Column("idle_bytes", "heartbeat bytes/stream"),
        ),
    )
    for _ in range(plan.scale.start_repeats):
        for name in plan.of("raw", "queue", "memory", "sqlite") if plan.includes("idle", OWN_TURN) else ():
            # A new process each time, because freed memory would be reused unseen.
            with serving([name]) as servers:
                sample = rest(servers[name], plan.scale, own_turns)
                record(table, OWN_TURN, name, sample)
                if name in ("raw", "queue"):
                    record(table, ONE_TURN, name, sample)
        for name in plan.of("memory", "sqlite") if plan.includes("idle", ONE_TURN) else ():
            with serving([name]) as servers:
                record(table, ONE_TURN, name, rest(servers[name], plan.scale, one_turn))
    return table


def own_turns(server: Server, streams: int) -> Job:
    return chat(server, FOREVER, streams, rest=True)


def one_turn(server: Server, streams: int) -> Job:
    session = server.post("/v1/sessions")["id"]
    turn = server.post(f"/v1/sessions/{session}/turns", {"message": str(FOREVER)})["turn_id"]
    return server.job(f"/v1/turns/{turn}/events", streams=streams, tokens=1, hold=True, leave=True)


def rest(server: Server, scale: Scale, job) -> Sample:
    with Load(job(server, WARM_STREAMS)) as warm, Load(job(server, scale.idle_streams)) as load:
        warm.proceed()
        warm.reach("open")
        time.sleep(0.5)
        before = server.resident_bytes()
        load.proceed()
        opened = load.reach("open")
        cpu = server.cpu_seconds()
        time.sleep(scale.idle_seconds)
        used = server.cpu_seconds() - cpu
        after = server.resident_bytes()
        load.proceed()
        report = load.reach("done")
    return {
        "bytes_per_stream": (after - before) / scale.idle_streams,
        "idle_cpu_percent": 100 * used / scale.idle_seconds,
        "idle_bytes": (report["received_bytes"] - opened["received_bytes"]) / scale.idle_streams,
    }
