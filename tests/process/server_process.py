"""`turnwire` commands and servers in processes of their own, which tests can kill."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.process.template import CommandProcess, fork_command
from tests.serving import PATIENCE, Client

# A start imports much, and several servers may start at once.
START_PATIENCE = 2 * PATIENCE
COMMAND = (sys.executable, "-m", "turnwire")

AGENTS = '''
import asyncio
import itertools
import os

from turnwire.core.journal.turn_journal import journaled
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, ToolCallEvent, ToolResultEvent

async def slow(turn):
    """Yield a word every other millisecond, as many as the message says."""
    for number in range(int(turn.message)):
        yield f"{number} "
        await asyncio.sleep(0.002)

async def steady(turn):
    """Yield fifty words a second, as many as the message says."""
    for number in range(int(turn.message)):
        yield f"{number} "
        await asyncio.sleep(0.02)

async def telling(turn):
    """Yield the id of the process that runs it."""
    yield str(os.getpid())

async def gushing(turn):
    """Yield bursts of fifty words, as many as the message says."""
    for number in range(int(turn.message)):
        for piece in range(50):
            yield f"{number}.{piece} "
        await asyncio.sleep(0.001)

async def unending(turn):
    """Yield bursts of fifty words, as many as the message says, and never end."""
    async for word in gushing(turn):
        yield word
    await asyncio.Event().wait()

async def held(turn):
    """Yield a word, and the rest once the file that the message names is there."""
    yield "Well, "
    while not os.path.exists(turn.message):
        await asyncio.sleep(0.01)
    yield "done."

async def silent(turn):
    """Yield one word and never end."""
    yield "Well, "
    await asyncio.Event().wait()

async def stubborn(turn):
    """Ignore cancellation and never end."""
    yield "No. "
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

class Stepping:
    """Call a tool forever, with the process id as its result; resumable in another process."""

    on_crash = "resume"

    async def answer(self, turn):
        for number in itertools.count():
            yield ToolCallEvent(f"c{number}", "step", {})
            result = await journaled(f"step {number}", step, idempotent=True)
            yield ToolResultEvent(f"c{number}", "step", True, result)

async def step():
    await asyncio.sleep(0.2)
    return str(os.getpid())

stepping = Stepping()

async def careful(turn):
    """Request an approval, and remember the process that did."""
    yield "May I? "
    first = await journaled("process", process_id)
    decision = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 40}))
    yield "Yes, " if decision.approved else "No, "
    yield "same process" if first == os.getpid() else "another process"

async def process_id():
    return os.getpid()
'''
ALL = ("slow", "steady", "telling", "gushing", "unending", "held", "silent", "stubborn", "stepping", "careful")


def environment(**settings: str) -> dict[str, str]:
    """Return the caller's environment with only these Turnwire settings, and no embeddings model."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
    # Documents are read with a low priority, which takes long beside other work.
    settings = {"documents_embeddings": "off", "documents_timeout": str(PATIENCE), **settings}
    return {
        **inherited,
        "PYTHONWARNINGS": "",
        **{f"TURNWIRE_{name.upper()}": value for name, value in settings.items()},
    }


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


async def run(*arguments: str | Path, cwd: Path | None = None, **settings: str) -> CommandResult:
    """Run a command to its end."""
    process = await start(*arguments, cwd=cwd, **settings)
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return CommandResult(process.returncode or 0, out.decode(), err.decode())


async def start(*arguments: str | Path, cwd: Path | None = None, **settings: str) -> CommandProcess:
    return await fork_command([*map(str, arguments)], cwd or Path.cwd(), environment(**settings))


class ErrorOutput:
    """A process's stderr, read continuously so that the process never blocks on it."""

    def __init__(self, pipe: asyncio.StreamReader | None) -> None:
        assert pipe is not None
        self.so_far = bytearray()
        self.whole = asyncio.create_task(self._read(pipe))

    async def _read(self, pipe: asyncio.StreamReader) -> bytes:
        while chunk := await pipe.read(65_536):
            self.so_far += chunk
        return bytes(self.so_far)


class ServerProcess(Client):
    """A server process and a client of it."""

    def __init__(self, url: str, process: CommandProcess, errors: "ErrorOutput") -> None:
        super().__init__(url)
        self.process = process
        self.errors = errors.whole
        """Its stderr, complete when the process has ended."""
        self.log = errors.so_far
        """Its stderr until now."""

    async def kill(self) -> None:
        """Kill the process as the kernel does when memory runs out, without cleanup."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def served(
    data: Path, *options: str | Path, cwd: Path | None = None, agents: Sequence[str] = ALL, **settings: str
) -> AsyncIterator[ServerProcess]:
    """Run `turnwire serve` with the agents above, until the block ends."""
    folder = cwd or data.parent
    arguments = ("serve", "--data", data, "--port", "0", *_agent_options(agents, folder), *options)
    async with _started(arguments, folder, settings) as (process, errors):
        server = ServerProcess(await _read_until(process, rb"listening on (http://[^ \n]+)", errors), process, errors)
        try:
            yield server
        finally:
            await server.http.aclose()


@asynccontextmanager
async def working(
    data: Path, *options: str | Path, agents: Sequence[str] = ALL, **settings: str
) -> AsyncIterator[CommandProcess]:
    """Run `turnwire worker` with the same agents, until the block ends."""
    arguments = ("worker", "--data", data, *_agent_options(agents, data.parent), *options)
    async with _started(arguments, data.parent, settings) as (process, errors):
        await _read_until(process, rb"(Running turns)", errors)
        yield process


def _agent_options(agents: Sequence[str], folder: Path) -> list[str]:
    (folder / "agents_of_the_test.py").write_text(AGENTS)
    return [part for name in agents for part in ("--agent", f"agents_of_the_test:{name}")]


@asynccontextmanager
async def _started(
    arguments: Sequence[str | Path], folder: Path, settings: dict[str, str]
) -> AsyncIterator[tuple[CommandProcess, ErrorOutput]]:
    process = await start(*arguments, cwd=folder, **settings)
    errors = ErrorOutput(process.stderr)
    try:
        yield process, errors
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await errors.whole


async def _read_until(process: CommandProcess, pattern: bytes, errors: ErrorOutput) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(START_PATIENCE):
        while line := await process.stdout.readline():
            if match := re.search(pattern, line):
                return match[1].decode()
        raise AssertionError(f"the process did not start: {(await errors.whole).decode()}")
