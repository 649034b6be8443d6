"""A scripted person at a terminal: the program runs in a pseudo-terminal, an emulator shows its output."""

import codecs
import os
import re
import select
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.channels.console.emulator import Emulator
from tests.process.server_process import environment
from tests.process.template import BlockingProcess

PATIENCE = 120.0

AGENTS = """
import asyncio
from turnwire.core.log.events import StatusEvent, ToolCallEvent, ToolResultEvent

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
        self.process = BlockingProcess([*map(str, arguments)], cwd, variables, terminal_size=size)
        self.terminal = self.process.output
        # Answers a program's query for the cursor position.
        self.emulator.screen.write_process_input = self._write  # type: ignore[method-assign]

    def type(self, keys: str) -> None:
        """Type as soon as the program reads keys; the terminal itself would act upon some of them before that."""
        self.until(lambda: not termios.tcgetattr(self.terminal)[3] & termios.ICANON, "a program that reads keys")
        self._write(keys)

    def _write(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def see(self, *texts: str) -> None:
        """Wait until all texts are shown."""
        self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    def until(self, condition: Callable[[], bool], description: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            is_over = not self._read() and self.process.wait() is not None
            assert (not is_over and time.monotonic() < deadline) or condition(), (
                f"{description} did not come:\n{self.text}"
            )

    def exit_code(self) -> int:
        """Wait for the program's end and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read() or self.process.wait() is None:
            assert time.monotonic() < deadline, f"the program does not end:\n{self.text}"
        assert self.process.returncode is not None
        return self.process.returncode

    def resize(self, width: int, height: int) -> None:
        self.emulator.screen.resize(height, width)
        termios.tcsetwinsize(self.terminal, (height, width))

    @property
    def text(self) -> str:
        return "\n".join(self.emulator.transcript)

    @property
    def lines(self) -> list[str]:
        return self.emulator.transcript

    def _read(self) -> bool:
        """Show the next output; return False if none comes for a moment, or none is left."""
        if not select.select([self.terminal], [], [], 0.05)[0]:
            return False
        try:
            self.emulator.feed(self._decoder.decode(os.read(self.terminal, 65_536)))
        except OSError:  # The program has closed the terminal.
            return False
        return True


@contextmanager
def typing(*arguments: str | Path, **options: Any) -> Iterator[Typist]:
    typist = Typist(*arguments, **options)
    try:
        yield typist
    finally:
        typist.process.close()


class RestartableServer:
    """A `turnwire serve` that can be killed and started again."""

    def __init__(self, data: Path, cwd: Path) -> None:
        write_agents(cwd)
        self._arguments = ["serve", "--data", str(data), "--port", "0", *REFERENCES]
        self._cwd = cwd
        self.start()

    def start(self) -> None:
        self.process = BlockingProcess(self._arguments, self._cwd, environment())
        with open(self.process.output, closefd=False) as output:
            match = next(filter(None, (re.search(r"listening on (http://\S+)", line) for line in output)))
        self.url = match[1]

    def kill(self) -> None:
        self.process.close()


@contextmanager
def serving_agents(data: Path, cwd: Path) -> Iterator[RestartableServer]:
    server = RestartableServer(data, cwd)
    try:
        yield server
    finally:
        server.kill()
