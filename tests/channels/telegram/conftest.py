"""A world for each test: its simulator, its tables, its time, which is simulated."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.channels.telegram.bot_api import BotApi
from tests.channels.telegram.world import World
from tests.simulated_time import SimulatedTimeLoop
from turnwire.channels.telegram.client import Clock

# They wait for the work of a whole Turnwire over sockets, of which the simulated clock knows nothing.
IN_REAL_TIME = "test_with_turnwire.py"


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    if item.path.name == IN_REAL_TIME:
        return {"real": asyncio.new_event_loop}
    return {"simulated": SimulatedTimeLoop}


class LoopClock(Clock):
    """The time of the event loop, simulated or not."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


@pytest.fixture
def clock() -> Clock:
    return LoopClock()


@pytest.fixture
async def world(clock: Clock) -> AsyncIterator[World]:
    async with BotApi(clock) as api:
        made = World(api, clock)
        yield made
        await made.crash()


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire.channels.telegram") as blockbuster:
        for function in blockbuster.functions.values():
            function.can_block_in("turnwire/sqlite_threads.py", {"_call_inline"})  # It reads no disk.
        yield
