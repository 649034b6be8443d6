"""Fixtures that run real clients in Node against a real server in this process.

The clients are installed once, beside this file, from package-lock.json. Without Node these tests fail with a hint.
"""

import asyncio
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import (
    errors_in_the_log,
    puppet,
    pytest_asyncio_loop_factories,
    serve,
    serve_documents,
    shelf,
)
from tests.serving import PATIENCE

__all__ = ["errors_in_the_log", "puppet", "pytest_asyncio_loop_factories", "serve", "serve_documents", "shelf"]

HERE = Path(__file__).parent
LOCK = HERE / "package-lock.json"
INSTALLED = HERE / "node_modules"
STAMP = INSTALLED / ".turnwire-stamp"
_OLDEST_NODE = 20
_INSTALL_SECONDS = 240
_RUN_SECONDS = PATIENCE


class Script:
    """A running script that prints one JSON value per line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(_RUN_SECONDS):
            line = await self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the script ended:\n{await self.stderr()}")
        return json.loads(line)

    async def stderr(self) -> str:
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stderr.read()).decode()

    async def ended(self) -> None:
        """Wait until the script has exited with status 0 and no further output."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_RUN_SECONDS):
            output = await self._process.stdout.read()
            status = await self._process.wait()
        assert (output, status) == (b"", 0), f"{output!r}\n{await self.stderr()}"


Run = Callable[..., Any]


@pytest.fixture(scope="session")
def node() -> str:
    """Return the path of Node, after installing the clients."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        pytest.fail("these tests run JavaScript clients: install Node 20 or newer with npm, from https://nodejs.org")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < _OLDEST_NODE:
        pytest.fail(f"these tests need Node {_OLDEST_NODE} or newer, from https://nodejs.org; here is {version}")
    digest = hashlib.sha256(LOCK.read_bytes() + version.encode()).hexdigest()
    with LOCK.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Other test workers wait for the installation.
        if not STAMP.exists() or STAMP.read_text() != digest:
            print("Installing the JavaScript clients (npm ci) …", file=sys.__stderr__, flush=True)
            _install(npm)
            STAMP.write_text(digest)
    return program


def _install(npm: str) -> None:
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True, timeout=_INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"npm could not install the clients in {HERE.name}/:\n{error.stderr}")
    except subprocess.TimeoutExpired:
        pytest.fail(f"npm did not install the clients within {_INSTALL_SECONDS} seconds; check the network")


@pytest.fixture
def run(node: str) -> Run:
    """Return a context manager that runs a script with arguments, and kills it at the end."""

    @asynccontextmanager
    async def start(name: str, *arguments: str) -> AsyncIterator[Script]:
        process = await asyncio.create_subprocess_exec(
            node,
            "--no-warnings",
            name,
            *arguments,
            cwd=HERE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        try:
            yield Script(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    return start
