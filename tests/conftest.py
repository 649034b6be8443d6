"""Fixtures that every folder of tests may use, and what each test needs beside Python.

A test that needs a browser, Node, PostgreSQL or another process is marked `browser`, `node`, `postgres` or `process`:
by its folder, by the fixtures it uses, by the store it runs on, or by a decorator where nothing else tells; one that
takes several seconds is marked `long`. `NEEDS` is all of them; `scripts/test --fast` runs the others. A test that
starts a program and has no such mark fails. `tests/examples.py` says which cases only `scripts/test --all` runs.
"""

import asyncio
import gc
import os
import platform
import random
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.stores import backend, store
from tests.examples import runs_all, without_rotated
from tests.parallel import pytest_addoption, pytest_runtestloop
from tests.process.template import template
from tests.server_stores import pytest_generate_tests, store_of_servers
from tests.slowest import report_slowest
from turnwire.plugins import installed

# Read before any event loop runs: the entry points are files, and a test may make the first `Settings` in its loop.
installed()

__all__ = [
    "backend",
    "pytest_addoption",
    "pytest_generate_tests",
    "pytest_runtestloop",
    "store",
    "store_of_servers",
]

HERE = Path(__file__).parent
NEEDS = {
    "browser": "needs Chromium",
    "node": "needs Node and npm",
    "postgres": "needs PostgreSQL",
    "process": "starts other programs and waits for them",
    "long": "computes for several seconds, or waits in real time",
}
LONGEST = ("long", "process", "browser", "node", "postgres")
FOLDERS = {
    "browser": "browser",
    "clients": "node",
    "faults": "process",
    "process": "process",
    "stores/postgres": "postgres",
}
FIXTURES = {"browser": "browser", "node": "node", "processes": "postgres"}

# Without compiled files every run compiles the SDKs again, which takes longer than to collect the tests.
sys.dont_write_bytecode = False
# Nearly all that is imported and collected stays until the end, so there is nothing for the garbage collector to find.
gc.disable()

_create_context = cache(lambda found, **options: _create_default_context(**options))
_create_default_context = ssl.create_default_context


def _share_context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **options: Any) -> ssl.SSLContext:
    """Every HTTP client reads all certificates of the machine, which takes longer than most tests: here, only one."""
    return _create_context((os.getenv("SSL_CERT_FILE"), os.getenv("SSL_CERT_DIR")), purpose=purpose, **options)


ssl.create_default_context = _share_context


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}; not part of `scripts/test --fast`")
    config.addinivalue_line("markers", "one_store(reason): runs on the store that it names, never on PostgreSQL")
    config.addinivalue_line("markers", "rotated(*parameters): one of their values runs, except in `scripts/test --all`")
    # The first call starts `uname`, and the OpenAI SDK makes it within whichever test sends the first request.
    platform.processor()


@cache
def _needs_of_folder(folder: Path) -> frozenset[str]:
    return frozenset(need for name, need in FOLDERS.items() if folder.is_relative_to(HERE / name))


def pytest_itemcollected(item: pytest.Item) -> None:
    needs = {need for name, need in FIXTURES.items() if name in getattr(item, "fixturenames", ())}
    for need in sorted(needs | _needs_of_folder(item.path.parent)):
        item.add_marker(need)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.workers and any(item.get_closest_marker("process") for item in session.items):
        template()  # One for all workers.
    # Thousands of modules and tests stay until the end; the garbage collector need not look through them.
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


# Last, because what `-k` and `-m` have left is what there is to choose from.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first, so that none is left for the end, when nothing else runs beside it."""
    if not runs_all():
        kept = without_rotated(items)
        config.hook.pytest_deselected(items=sorted(set(items) - set(kept), key=lambda item: item.nodeid))
        items[:] = kept
    items.sort(key=lambda item: next((rank for rank, need in enumerate(LONGEST) if item.get_closest_marker(need)), 9))


def _needs(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(need) for need in NEEDS)


# A test that starts a program says so

_running: list[pytest.Item] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running.append(item)
    # The same choices in each run, whatever ran before; `scripts/test --all` has another seed each time.
    random.seed(f"{item.config.getoption('--hypothesis-seed')} {item.nodeid}")
    try:
        return (yield)
    finally:
        _running.remove(item)


def _refuse_unmarked(start: Any) -> Any:
    @wraps(start)
    def started(*arguments: Any, **options: Any) -> Any:
        if _running and not _needs(_running[-1]):
            pytest.fail(f"{_running[-1].nodeid} starts a program: mark it with @pytest.mark.process")
        return start(*arguments, **options)

    return started


# `platform` runs `uname` once and remembers the answer; the first test that needs it must not be blamed.
platform.processor()
subprocess.Popen.__init__ = _refuse_unmarked(subprocess.Popen.__init__)
asyncio.create_subprocess_exec = _refuse_unmarked(asyncio.create_subprocess_exec)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_slowest(terminalreporter)
