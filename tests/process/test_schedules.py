"""Schedules over two processes that are killed in the middle of the turns that they have started."""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.process.scheduling import LEASE_SECONDS, WORDS
from tests.process.shared_database import temporary_database
from tests.serving import PATIENCE, within
from turnwire.core.contracts.stores import UnfinishedFilter
from turnwire.scheduler.schedule import Schedule
from turnwire.scheduler.scheduler import Scheduler
from turnwire.stores.postgres import PostgresStore

KILLS = 50
START = 1_800_000_000_000
MINUTE = 60_000


class Processes:
    """Two processes that run schedules, by a clock that only the test moves."""

    def __init__(self, parent: asyncio.subprocess.Process, clock: Path) -> None:
        self._parent = parent
        self._clock = clock
        self.pids: list[int] = []

    async def start(self) -> None:
        assert self._parent.stdin
        assert self._parent.stdout
        while len(self.pids) < 2:
            self._parent.stdin.write(b"\n")
            self.pids.append(int(await within(self._parent.stdout.readline())))

    def kill(self, index: int) -> None:
        os.kill(self.pids.pop(index), signal.SIGKILL)

    def set_clock(self, now: int) -> None:
        written = self._clock.with_suffix(".new")
        written.write_text(str(now))
        written.replace(self._clock)


@asynccontextmanager
async def running_processes(url: str, folder: Path) -> AsyncIterator[Processes]:
    command = (sys.executable, "-m", "tests.process.scheduling", url, str(folder / "clock"))
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2], start_new_session=True
    )
    processes = Processes(parent, folder / "clock")
    processes.set_clock(START)
    try:
        await processes.start()
        yield processes
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        await parent.wait()


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.005)  # The processes need the machine too.


async def nobody_starts(schedule: Schedule, key: str) -> str | None:
    raise AssertionError("this process starts no turns")


async def test_each_time_is_run_once_by_two_processes_that_are_killed_in_the_middle_of_turns(tmp_path: Path) -> None:
    chance = random.Random(15)
    with temporary_database() as url:
        store = PostgresStore(url, lease=LEASE_SECONDS)
        await store.open()
        scheduler = Scheduler(store, nobody_starts)
        schedule = await scheduler.add(
            Schedule(id="", principal="ann", message="hello", created_at=START, every=60, missed="run_once")
        )

        async with running_processes(url, tmp_path) as processes:
            kills = minutes = 0
            while kills < KILLS:
                minutes += 1
                due = START + minutes * MINUTE
                processes.set_clock(due)
                events = chance.randrange(WORDS + 2)

                async def has_begun(events: int = events, expected: int = minutes) -> bool:
                    turns = await store.list_turns("ann", limit=1000)
                    return len(turns) >= expected and turns[-1].last_position >= events

                if events:
                    await until_true(has_begun)
                # Sometimes both, and sometimes before anything has happened.
                for _ in range(chance.choice((1, 1, 2))):
                    processes.kill(chance.randrange(len(processes.pids)))
                    kills += 1
                await processes.start()

                async def is_recorded(due: int = due) -> bool:
                    run = await scheduler.last_run(schedule)
                    return run is not None and run.due == due

                await until_true(is_recorded)

            async def all_ended() -> bool:
                return not await store.unfinished(where=UnfinishedFilter(principal="ann"))

            await until_true(all_ended)
        outcomes = Counter(turn.outcome for turn in await store.list_turns("ann", limit=1000))
        await store.close()
    assert sum(outcomes.values()) == minutes
    assert outcomes.keys() == {"completed", "interrupted"}, outcomes
