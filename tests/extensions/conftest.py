"""Fixtures that keep the developer's own extensions, and the bundled channels, out of the tests."""

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.simulated_time import SimulatedTimeLoop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """Simulate time, except for a test that starts other programs: those run in real time."""
    if item.get_closest_marker("process"):
        return {"real": asyncio.new_event_loop}
    return {"simulated": SimulatedTimeLoop}


@pytest.fixture(autouse=True)
def isolated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("TURNWIRE_", "TELEGRAM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TURNWIRE_EXTENSION_CONSOLE_ENABLED", "false")


@pytest.fixture(autouse=True)
def no_traceback_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail on a traceback at error level: failures of extensions are logged in one line."""
    yield
    assert [
        record for record in caplog.get_records("call") if record.exc_info and record.levelno >= logging.ERROR
    ] == []


@pytest.fixture(autouse=True)
def event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire") as blockbuster:
        for function in blockbuster.functions.values():
            # Before the first message and after the last, nobody waits.
            function.can_block_in("turnwire/stores/sqlite/store.py", {"open", "close"})
            function.can_block_in("turnwire/plugins.py", {"installed"})
            # The memory store is SQLite without a disk.
            function.can_block_in("turnwire/stores/sqlite/schema.py", {"open_memory"})
            function.can_block_in("turnwire/sqlite_threads.py", {"_call_inline"})
            # Once for each extension; it is one call on a local disk.
            function.can_block_in("turnwire/extensions/contract.py", {"data_folder"})
        yield
