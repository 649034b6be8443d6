"""Acceptance tests of the five designs that Turnwire realises, one file per design, one test per named thing.

The docstring of a test names the section of the design. `docs/designs.md` has the same list, with the code.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.retrieval.shelf import SHELF, library, make_model, model, searcher
from tests.scripted_model import model_server
from tests.serving import Puppet, Served, quick_settings, ready, serving, within
from tests.simulated_time import SimulatedTimeLoop
from turnwire import Turnwire

__all__ = ["library", "make_model", "model", "model_server", "searcher"]

Serve = Callable[..., AbstractAsyncContextManager[Served]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """Simulate time for channels, whose calls have limits."""
    if item.path.stem == "test_dual_path_channels":
        return {"simulated": SimulatedTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def isolated_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("TURNWIRE_", "TELEGRAM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TURNWIRE_EXTENSION_CONSOLE_ENABLED", "false")


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @asynccontextmanager
    async def start(agent: Any, **settings: Any) -> AsyncIterator[Served]:
        chosen = quick_settings(tmp_path / "data", **settings)
        async with serving(Turnwire(agent=agent, store="memory", settings=chosen)) as served:
            yield served

    return start


@pytest.fixture
def serve_documents(tmp_path: Path) -> Serve:
    """Serve the default agent over a few documents; with `model_url`, with a model."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Served]:
        folder = tmp_path / "docs"
        folder.mkdir()
        for name, text in SHELF.items():
            (folder / name).write_text(text)
        configured = quick_settings(tmp_path / "data", documents={"paths": [folder]}, **settings)
        turnwire = Turnwire(store="memory", settings=configured)
        async with serving(turnwire) as served:
            await within(ready(turnwire))
            yield served

    return start


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "turnwire.runner")
