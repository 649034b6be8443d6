"""A world for each test: its simulator, its clock, its folder."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from tests.channels.telegram.bot_api import BotApi
from tests.channels.telegram.world import SPEED, World
from turnwire.channels.telegram.rate_limits import Clock


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    """A test that measures may ask for a slower one."""
    return Clock(getattr(request, "param", SPEED))


@pytest.fixture
async def world(tmp_path: Path, clock: Clock) -> AsyncIterator[World]:
    async with BotApi(clock) as api:
        made = World(tmp_path / "telegram", api, clock)
        yield made
        await made.crash()


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire.channels.telegram"):
        yield
