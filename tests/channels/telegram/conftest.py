"""A world for each test: its simulator, its clock, its folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.channels.telegram.bot_api import BotApi
from tests.channels.telegram.world import SPEED, World
from turnwire.channels.telegram.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(SPEED)


@pytest.fixture
async def world(tmp_path: Path, clock: Clock) -> AsyncIterator[World]:
    async with BotApi(clock) as api:
        made = World(tmp_path / "telegram", api, clock)
        yield made
        await made.crash()
