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


def pin_all_threads(core: int) -> None:
    """Pin all threads of this process to a core; threads that start later inherit it."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


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


class Yardstick:
    """A fixed piece of work on a core before and after a run, when no process of the bench has anything to do.

    `yardstick_ms` is its CPU time: the CPU clock counts time, not work, and a throttled core needs more of it.
    `yardstick_wait` is the part of the time in which it was ready to run but did not: others used the core.
    """

    def __init__(self, core: int) -> None:
        self._core = core
        self._before = self._work()

    def result(self) -> dict[str, float]:
        used, passed = map(sum, zip(self._before, self._work(), strict=True))
        return {"yardstick_ms": used * 1000 / 2, "yardstick_wait": max(0.0, 1 - used / passed)}

    def _work(self) -> tuple[float, float]:
        """Return the CPU seconds and the seconds that the work takes."""
        with pinned(self._core):
            used, passed = time.thread_time(), time.perf_counter()
            total = 0
            for n in range(300_000):
                total += n
            return time.thread_time() - used, time.perf_counter() - passed


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
