"""The life cycle of a server: a failed `open` leaves nothing open, and an error in `close` skips nothing."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Puppet, quick_settings
from turnwire.app import Turnwire
from turnwire.core.errors import StoreError
from turnwire.core.run.runner import TurnRequest


class Factory:
    """A factory of an agent, whose first attempts fail."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.closed = 0

    @asynccontextmanager
    async def make(self) -> AsyncGenerator[Any]:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the tool server is away")
        yield Puppet()
        self.closed += 1


@pytest.mark.one_store("it is about the folder of SQLite")
async def test_failed_open_leaves_the_folder_to_the_next_server(tmp_path: Path) -> None:
    factory = Factory(failures=1)
    first = Turnwire(factory.make, store="sqlite", settings=quick_settings(tmp_path))
    with pytest.raises(ConnectionError):
        await first.open()
    assert not first.is_open
    async with Turnwire(factory.make, store="sqlite", settings=quick_settings(tmp_path)).lifespan():
        assert factory.closed == 0
    assert factory.closed == 1


async def test_open_can_be_repeated_after_a_failure(tmp_path: Path) -> None:
    factory = Factory(failures=1)
    turnwire = Turnwire(factory.make, store="memory", settings=quick_settings(tmp_path))
    with pytest.raises(ConnectionError):
        await turnwire.open()
    async with turnwire.lifespan():
        accepted = await turnwire.runner.start(TurnRequest(principal="ann", message="hello"))
        assert accepted.created


@pytest.mark.one_store("it is about the folder of SQLite")
async def test_error_in_close_skips_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = Factory(failures=0)
    turnwire = Turnwire(factory.make, store="sqlite", settings=quick_settings(tmp_path))
    close = turnwire.runner.close

    async def fail() -> None:
        await close()
        raise StoreError("the disk is full")

    monkeypatch.setattr(turnwire.runner, "close", fail)
    await turnwire.open()
    with pytest.raises(StoreError, match="disk is full"):
        await turnwire.close()
    assert not turnwire.is_open
    assert factory.closed == 1
    async with Turnwire(Puppet(), store="sqlite", settings=quick_settings(tmp_path)).lifespan():
        pass
