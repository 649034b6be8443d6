"""Fixtures for one Chromium per process, and servers for it on the same event loop."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from bench.browser import find_browser
from tests.server.conftest import errors_in_the_log, puppet, shelf
from tests.serving import Served, quick_settings, serving
from turnwire import Turnwire

__all__ = ["errors_in_the_log", "puppet", "shelf"]

Serve = Callable[..., AbstractAsyncContextManager[Served]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            # A browser belongs to one event loop.
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def browser_program() -> str:
    # The same browser without its windows and menus: a page opens with a fifth of the computing.
    program = shutil.which("chromium-headless-shell") or find_browser()
    if program is None:
        pytest.fail("these tests drive a browser: apt-get install chromium-headless-shell, or chromium")
    return program


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    # Chromium has no sandbox for root; the test pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=browser_program(), args=arguments)
        yield started
        await started.close()


@pytest.fixture
def serve(tmp_path: Path, puppet: Any) -> Serve:
    """Return a function that serves an agent, by default the puppet; further arguments are settings."""

    def start(agent: Any = None, *, store: Any = "memory", docs: Any = (), agents: Any = None, **settings: Any) -> Any:
        if agent is None and not docs and not agents:
            agent = puppet
        configured = quick_settings(tmp_path / "data", documents={"paths": docs}, **settings)
        return serving(Turnwire(agent, agents=agents, store=store, settings=configured))

    return start
