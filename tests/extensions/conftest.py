"""No extension of whoever runs the tests, and no channel that comes with Turnwire, takes part unless a test says so."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def only_what_the_test_brings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("TURNWIRE_", "TELEGRAM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TURNWIRE_EXTENSION_CONSOLE_ENABLED", "false")


@pytest.fixture(autouse=True)
def nothing_is_logged_as_an_accident(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Failures of extensions are told in a line; a traceback at this level would be one of the kernel's own."""
    yield
    assert [
        record for record in caplog.get_records("call") if record.exc_info and record.levelno >= logging.ERROR
    ] == []


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire") as blockbuster:
        for function in blockbuster.functions.values():
            # Before the first message and after the last one there is nobody to keep waiting.
            function.can_block_in("turnwire/stores/sqlite/store.py", {"open", "close"})
            # Once for each extension that wants a folder; it is one call on a local disk.
            function.can_block_in("turnwire/extensions/context.py", {"data_folder"})
        yield
