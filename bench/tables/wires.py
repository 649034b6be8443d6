"""The cost of encoding an event on each wire, in this process, without store and socket."""

import time
from collections.abc import Callable

from bench import measure
from bench.logs import TURN, as_stored, typical_log
from bench.plan import Plan, record
from bench.processes import SERVER_CORE
from bench.results import Column, Table
from bench.sources import TOKENS
from turnwire.assembly import build_socket_wires, build_wires
from turnwire.core.contracts.wires import Wire
from turnwire.core.log.codec import LoggedEvent

PASSES = 20


def wires(plan: Plan) -> Table:
    log = typical_log(TOKENS)
    others = len(log) - len(TOKENS)
    table = Table(
        "wires",
        f"A log of {len(TOKENS)} tokens and {others} other events, written: CPU an event",
        Column("us_per_event", "µs/event", 3),
        against=("sse_chat",),
        others=(Column("bytes_per_event", "bytes/event", 0),),
        subject="wire",
    )
    cases: dict[str, Callable[[], list[LoggedEvent]]] = {
        "as it happens": lambda: log,
        "read from a disk": lambda: as_stored(log),
    }
    with measure.pinned(SERVER_CORE):
        for case in (case for case in cases if plan.case in case):
            measure_case(table, plan, case, cases[case])
    return table


def measure_case(table: Table, plan: Plan, case: str, events: Callable[[], list[LoggedEvent]]) -> None:
    built = every_wire()
    for repeat in range(plan.scale.repeats + 1):
        for name in plan.of(*built):
            sample = encoded(built[name], [events() for _ in range(PASSES)])
            if repeat:  # The first is a warm-up.
                record(table, case, name, sample)


def every_wire() -> dict[str, Wire]:
    return {name: build({}) for name, build in build_wires().items()} | {
        name: build(TURN) for name, build in build_socket_wires().items()
    }


def encoded(wire: Wire, logs: list[list[LoggedEvent]]) -> dict[str, float]:
    size = 0
    began = time.process_time()
    for log in logs:
        frame = wire.encoder().frame
        for logged in log:
            size += len(frame(logged))
    used = time.process_time() - began
    count = sum(map(len, logs))
    return {"us_per_event": used * 1e6 / count, "bytes_per_event": size / count}
