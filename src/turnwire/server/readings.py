"""What can be told of a server at this moment, for `/metrics`: what it has under way, and what it is."""

import os
import sys
import time
from collections import Counter
from pathlib import Path

import turnwire as package
from turnwire.reporting.exposition import Reading
from turnwire.server.turnwire import Turnwire

_STARTED = time.time()
_MOST_TURNS = 100_000


async def server_readings(turnwire: Turnwire) -> list[Reading]:
    about = {"version": package.__version__, "worker": turnwire.runner.worker}
    runner = turnwire.runner
    phases = Counter(record.phase for record in await turnwire.store.under_way(None, _MOST_TURNS))
    return [
        Reading("turnwire_worker_info", "This process: its version and the id that its turns name it by.", 1, about),
        Reading("turnwire_turns_running", "Turns that this process runs.", runner.running_count),
        Reading("turnwire_turns_queued", "Turns that wait to be run, by any process.", phases["queued"]),
        Reading("turnwire_turns_waiting", "Turns that wait for a person's decision.", phases["waiting"]),
        Reading("turnwire_readers_open", "Streams and sockets that are open.", turnwire.streams.open_count),
        Reading("turnwire_draining", "1 while the server shuts down and takes no turns.", turnwire.is_draining),
    ]


def process_readings() -> list[Reading]:
    """Under the names that dashboards know. Reads files, so not for the event loop."""
    spent = Reading(
        "process_cpu_seconds_total", "CPU time that the process has used.", time.process_time(), kind="counter"
    )
    started = Reading("process_start_time_seconds", "When the process was started, in Unix time.", _STARTED)
    return [spent, started, *_from_proc()]


def _from_proc() -> list[Reading]:
    if not sys.platform.startswith("linux"):
        return []
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return [
        Reading("process_resident_memory_bytes", "Memory that the process has in RAM.", resident),
        Reading("process_open_fds", "Files and sockets that the process has open.", len(os.listdir("/proc/self/fd"))),
    ]
