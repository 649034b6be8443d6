"""`turnwire` as a user runs it: in a process of its own, that can be killed."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.serving import PATIENCE, Client

# Much is imported first, and several may start at once.
START_PATIENCE = 40.0
COMMAND = (sys.executable, "-m", "turnwire")

AGENTS = '''
import asyncio
import itertools
import os

from turnwire.core.approvals import WaitForApproval
from turnwire.core.events import ApprovalRequestEvent, ToolCallEvent, ToolResultEvent

async def slow(turn):
    """Says a word every other millisecond, as often as it is told."""
    for number in range(int(turn.message)):
        yield f"{number} "
        await asyncio.sleep(0.002)

async def steady(turn):
    """Says fifty words a second, as many as it is told."""
    for number in range(int(turn.message)):
        yield f"{number} "
        await asyncio.sleep(0.02)

async def telling(turn):
    """Says which process runs it."""
    yield str(os.getpid())

async def gushing(turn):
    """Says much at once, again and again."""
    for number in range(int(turn.message)):
        for piece in range(50):
            yield f"{number}.{piece} "
        await asyncio.sleep(0.001)

async def silent(turn):
    """Says one word and never ends."""
    yield "Well, "
    await asyncio.Event().wait()

async def stubborn(turn):
    """Never ends, whoever asks."""
    yield "No. "
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

class Stepping:
    """Takes one step after the other until it is stopped, and says in which process; it goes on in another."""

    on_crash = "resume"

    def repeats(self, tool):
        return True

    async def answer(self, turn):
        for number in itertools.count(sum(message.role == "tool" for message in turn.progress)):
            yield ToolCallEvent(f"c{number}", "step", {})
            await asyncio.sleep(0.2)
            yield ToolResultEvent(f"c{number}", "step", True, str(os.getpid()))

stepping = Stepping()

async def careful(turn):
    """Asks before it does anything, and remembers in which process it did."""
    if turn.resumption is None:
        yield "May I? "
        raise WaitForApproval([ApprovalRequestEvent("c1", "pay", {"amount": 40})], str(os.getpid()).encode())
    (decision,) = turn.resumption.decisions
    yield "Yes, " if decision.approved else "No, "
    yield "same process" if turn.resumption.checkpoint == str(os.getpid()).encode() else "another process"
'''
ALL = ("slow", "steady", "telling", "gushing", "silent", "stubborn", "stepping", "careful")


def environment(**settings: str) -> dict[str, str]:
    """The caller's, without any settings of Turnwire but these, and with no model to load."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
    settings = {"embeddings": "off", **settings}
    return {**kept, "PYTHONWARNINGS": "", **{f"TURNWIRE_{name.upper()}": value for name, value in settings.items()}}


class Finished(NamedTuple):
    code: int
    out: str
    err: str


async def run(*arguments: str | Path, cwd: Path | None = None, **settings: str) -> Finished:
    """Runs a command to its end."""
    process = await start(*arguments, cwd=cwd, **settings)
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return Finished(process.returncode or 0, out.decode(), err.decode())


async def start(*arguments: str | Path, cwd: Path | None = None, **settings: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *map(str, arguments),
        cwd=cwd,
        env=environment(**settings),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Whoever runs the tests in the background may ignore it, and programs inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


class Errors:
    """What a process says on stderr, read all the time so that it never waits for us."""

    def __init__(self, pipe: asyncio.StreamReader | None) -> None:
        assert pipe is not None
        self.so_far = bytearray()
        self.whole = asyncio.create_task(self._read(pipe))

    async def _read(self, pipe: asyncio.StreamReader) -> bytes:
        while chunk := await pipe.read(65_536):
            self.so_far += chunk
        return bytes(self.so_far)


class Running(Client):
    """A server process and a client of it."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, errors: "Errors") -> None:
        super().__init__(url)
        self.process = process
        self.errors = errors.whole
        """All that it says on stderr, once it has ended."""
        self.log = errors.so_far
        """What it has said on stderr until now."""

    async def kill(self) -> None:
        """As the kernel does when memory runs out: nobody is asked, nothing is tidied up."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def served(
    data: Path, *options: str | Path, cwd: Path | None = None, agents: Sequence[str] = ALL, **settings: str
) -> AsyncIterator[Running]:
    """`turnwire serve` with the agents above, until the block ends."""
    folder = cwd or data.parent
    arguments = ("serve", "--data", data, "--port", "0", *_named(agents, folder), *options)
    async with _started(arguments, folder, settings) as (process, errors):
        server = Running(await _said(process, rb"listening on (http://[^ \n]+)", errors), process, errors)
        try:
            yield server
        finally:
            await server.http.aclose()


@asynccontextmanager
async def working(
    data: Path, *options: str | Path, agents: Sequence[str] = ALL, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`turnwire worker` with the same agents."""
    arguments = ("worker", "--data", data, *_named(agents, data.parent), *options)
    async with _started(arguments, data.parent, settings) as (process, errors):
        await _said(process, rb"(Running turns)", errors)
        yield process


def _named(agents: Sequence[str], folder: Path) -> list[str]:
    (folder / "agents_of_the_test.py").write_text(AGENTS)
    return [part for name in agents for part in ("--agent", f"agents_of_the_test:{name}")]


@asynccontextmanager
async def _started(
    arguments: Sequence[str | Path], folder: Path, settings: dict[str, str]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Errors]]:
    process = await start(*arguments, cwd=folder, **settings)
    errors = Errors(process.stderr)
    try:
        yield process, errors
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await errors.whole


async def _said(process: asyncio.subprocess.Process, words: bytes, errors: Errors) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(START_PATIENCE):
        while line := await process.stdout.readline():
            if found := re.search(words, line):
                return found[1].decode()
        raise AssertionError(f"it did not start: {(await errors.whole).decode()}")
