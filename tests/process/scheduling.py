"""Processes that run schedules and their turns on a shared database, by the clock in a file.

`python -m tests.process.scheduling URL CLOCK` starts one for each line that it reads, and prints its id. They are
forked from a process that has imported everything, so that fifty of them start in a few seconds.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from turnwire.core.log.turns import Turn
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRequest, TurnRunner
from turnwire.scheduler.schedule import Schedule
from turnwire.scheduler.scheduler import Scheduler
from turnwire.stores.postgres import PostgresStore

LEASE_SECONDS = 1.0
WORDS = 10


class SlowAgent:
    """Yields a few words, slowly enough to be killed between them."""

    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        for number in range(WORDS):
            yield f"{number} "
            await asyncio.sleep(0.005)


async def run(url: str, clock: Path) -> None:
    store = PostgresStore(url, lease=LEASE_SECONDS)
    await store.open()
    runner = TurnRunner(store, {"slow": SlowAgent()}, Limits(lease=LEASE_SECONDS))
    await runner.open()

    async def start(schedule: Schedule, key: str) -> str | None:
        request = TurnRequest(principal=schedule.principal, message=schedule.message, idempotency_key=key)
        return (await runner.start(request)).record.id

    scheduler = Scheduler(store, start, lambda: int(clock.read_text()))
    while True:
        await scheduler.start_due()
        await asyncio.sleep(0.01)


def main(url: str, clock: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            asyncio.run(run(url, Path(clock)))
        print(pid, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
