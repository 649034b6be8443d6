"""Fixtures that run real clients in Node against a real server in this process.

The clients are installed once, beside this file, from package-lock.json. Without Node these tests fail with a hint.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.node_packages import node_with
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
_RUN_SECONDS = PATIENCE
AI_SDKS = [pytest.param(version, marks=pytest.mark.rotated("client")) for version in ("ai5", "ai6", "ai7")]
"""The versions of one SDK: they take turns."""


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

    async def send(self, line: str) -> None:
        """Write a line to the standard input of the script."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

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
    return node_with(HERE)


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
            stdin=asyncio.subprocess.PIPE,
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
