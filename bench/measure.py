"""Cores, CPU clocks and memory of a process. Linux only.

The CPU clock is the kernel's own for the whole process, all its threads, in nanoseconds:
it holds on a shared machine, where a wall clock does not.
"""

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

_WHOLE_PROCESS = 2  # CPUCLOCK_SCHED in the kernel's posix-timers.h


def cores() -> tuple[int, int]:
    """Return the core of the server and the core of the client, the same if there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[min(1, len(usable) - 1)]


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin this thread to a core inside the block."""
    allowed = os.sched_getaffinity(0)
    pin(core)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process since its start, user and system."""
    # The id that clock_getcpuclockid(3) computes, which Python does not offer.
    return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)


def yardstick(core: int) -> float:
    """Return the CPU milliseconds of a fixed piece of work on a core; more means a slower machine.

    The CPU clock counts time, not work: a throttled core needs more of it.
    """
    with pinned(core):
        started = time.thread_time()
        total = 0
        for n in range(300_000):
            total += n
        used = time.thread_time() - started
    return used * 1000


def resident_bytes(pid: int) -> int:
    """Return the resident memory, from `smaps_rollup`, because `statm` may lag by some pages per core."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
    raise LookupError(f"process {pid} has no resident memory; it may have ended")


def raise_open_files() -> None:
    """Let this process and its children open as many sockets as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
