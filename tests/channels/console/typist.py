"""A person at a real terminal: the program runs in a pseudo-terminal, and an emulator shows what they would see."""

import codecs
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect

from tests.channels.console.emulator import Emulator
from tests.process.running import environment

PATIENCE = 20.0

AGENTS = """
import asyncio
from turnwire.core.events import StatusEvent, ToolCallEvent, ToolResultEvent

STORY = "# A story\\n\\nOnce upon a **time** there was 世界.\\n\\n" + "".join(
    f"- line {number}\\n" for number in range(40)) + "\\nThe end.\\n"

async def echo(turn):
    yield f"You said: {turn.message}"

async def story(turn):
    yield ToolCallEvent("c1", "remember", {})
    yield ToolResultEvent("c1", "remember", True, "much", 400.0)
    for place in range(0, len(STORY), 5):
        yield STORY[place:place + 5]
        await asyncio.sleep(0.001)

async def digging(turn):
    yield "Let me dig."
    yield ToolCallEvent("c1", "dig", {"deep": True})
    await asyncio.Event().wait()

async def waiting(turn):
    yield "Well, "
    await asyncio.Event().wait()

async def failing(turn):
    yield "Hm. "
    raise ValueError("no")

async def lengthy(turn):
    for number in range(100_000):
        yield f"line {number}\\n"
        await asyncio.sleep(0)
"""
NAMES = ("echo", "story", "digging", "waiting", "failing", "lengthy")
REFERENCES = [part for name in NAMES for part in ("--agent", f"agents_at_the_terminal:{name}")]


def write_agents(folder: Path) -> None:
    (folder / "agents_at_the_terminal.py").write_text(AGENTS)


class Typist:
    def __init__(self, *arguments: str | Path, cwd: Path, size: tuple[int, int] = (80, 24), **more: str) -> None:
        width, height = size
        self.emulator = Emulator(width, height)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        told = {**environment(), "TERM": "xterm-256color", **more}
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "turnwire", *map(str, arguments)],
            cwd=str(cwd),
            env=told,  # type: ignore[arg-type]
            dimensions=(height, width),
            timeout=PATIENCE,
        )
        # Programs ask a terminal where its cursor is.
        self.emulator.screen.write_process_input = self.child.send  # type: ignore[method-assign]

    def type(self, keys: str) -> None:
        self.child.send(keys)

    def see(self, *texts: str) -> None:
        """Waits until all of this is there."""
        self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            is_over = not self._read() and not self.child.isalive()
            assert (not is_over and time.monotonic() < deadline) or holds(), f"{what} did not come:\n{self.text}"

    def leaves(self) -> int:
        """Waits for the program's end; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.child.isalive() or self._read():
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
            self._read()
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -(self.child.signalstatus or 0)

    def resize(self, width: int, height: int) -> None:
        self.emulator.screen.resize(height, width)
        self.child.setwinsize(height, width)

    @property
    def text(self) -> str:
        return "\n".join(self.emulator.transcript)

    @property
    def lines(self) -> list[str]:
        return self.emulator.transcript

    def _read(self) -> bool:
        try:
            self.emulator.feed(self._decoder.decode(self.child.read_nonblocking(65_536, 0.05)))
        except pexpect.TIMEOUT:
            return False
        except pexpect.EOF:
            return False
        return True


@contextmanager
def typing(*arguments: str | Path, **options: Any) -> Iterator[Typist]:
    typist = Typist(*arguments, **options)
    try:
        yield typist
    finally:
        typist.child.close(force=True)


class ServerProcess:
    """`turnwire serve`, that can be killed and started again."""

    def __init__(self, data: Path, cwd: Path) -> None:
        write_agents(cwd)
        self._command = [sys.executable, "-m", "turnwire", "serve", "--data", str(data), "--port", "0", *REFERENCES]
        self._cwd = cwd
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        found = next(filter(None, (re.search(r"listening on (http://\S+)", line) for line in self.process.stdout)))
        self.url = found[1]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


@contextmanager
def serving_agents(data: Path, cwd: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(data, cwd)
    try:
        yield server
    finally:
        server.kill()
