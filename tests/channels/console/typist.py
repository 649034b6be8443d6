"""A scripted person at a terminal: the program runs in a pseudo-terminal, an emulator shows its output."""

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
from tests.process.server_process import environment

PATIENCE = 60.0

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
    for start in range(0, len(STORY), 5):
        yield STORY[start:start + 5]
        await asyncio.sleep(0.001)

async def digging(turn):
    yield "Let me dig."
    yield ToolCallEvent("c1", "dig", {"deep": True})
    await asyncio.Event().wait()

async def waiting(turn):
    yield "Well, "
    await asyncio.Event().wait()

async def listening(turn):
    from turnwire import take_inputs
    yield f"To {turn.message}.\\n\\n"
    while not (heard := await take_inputs()):
        await asyncio.sleep(0.01)
    yield f"Heard {', '.join(heard)}."

async def failing(turn):
    yield "Hm. "
    raise ValueError("no")

async def lengthy(turn):
    for number in range(100_000):
        yield f"line {number}\\n"
        await asyncio.sleep(0)
"""
NAMES = ("echo", "story", "digging", "waiting", "listening", "failing", "lengthy")
REFERENCES = [part for name in NAMES for part in ("--agent", f"agents_at_the_terminal:{name}")]


def write_agents(folder: Path) -> None:
    (folder / "agents_at_the_terminal.py").write_text(AGENTS)


class Typist:
    """Types into a `turnwire` command and waits for its output."""

    def __init__(self, *arguments: str | Path, cwd: Path, size: tuple[int, int] = (80, 24), **overrides: str) -> None:
        width, height = size
        self.emulator = Emulator(width, height)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # The size of the caller's terminal must not count.
        inherited = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
        variables = {**inherited, "TERM": "xterm-256color", **overrides}
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "turnwire", *map(str, arguments)],
            cwd=str(cwd),
            env=variables,  # type: ignore[arg-type]
            dimensions=(height, width),
            timeout=PATIENCE,
        )
        # Answers a program's query for the cursor position.
        self.emulator.screen.write_process_input = self.child.send  # type: ignore[method-assign]

    def type(self, keys: str) -> None:
        self.child.send(keys)

    def see(self, *texts: str) -> None:
        """Wait until all texts are shown."""
        self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    def until(self, condition: Callable[[], bool], description: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            is_over = not self._read() and not self.child.isalive()
            assert (not is_over and time.monotonic() < deadline) or condition(), (
                f"{description} did not come:\n{self.text}"
            )

    def exit_code(self) -> int:
        """Wait for the program's end and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.child.isalive() or self._read():
            assert time.monotonic() < deadline, f"the program does not end:\n{self.text}"
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


class RestartableServer:
    """A `turnwire serve` that can be killed and started again."""

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
        match = next(filter(None, (re.search(r"listening on (http://\S+)", line) for line in self.process.stdout)))
        self.url = match[1]

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


@contextmanager
def serving_agents(data: Path, cwd: Path) -> Iterator[RestartableServer]:
    server = RestartableServer(data, cwd)
    try:
        yield server
    finally:
        server.kill()
