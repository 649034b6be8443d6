"""A terminal emulator that keeps the lines that scrolled away."""

import io
import unicodedata
from collections.abc import Sequence

import pyte
from pyte import modes
from rich.console import Console, RenderableType

from turnwire.channels.console.screen import Screen
from turnwire.channels.console.view import LiveView

SIZES = ((80, 24), (40, 15), (200, 50))


class Emulator:
    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.screen = pyte.HistoryScreen(width, height, history=100_000)
        # The kernel's terminal driver also returns on a line feed.
        self.screen.set_mode(modes.LNM)
        self._stream = pyte.Stream(self.screen)
        self.written = ""

    def feed(self, text: str) -> None:
        self.written += text
        self._stream.feed(text)

    @property
    def scrolled(self) -> list[str]:
        width = self.screen.columns
        return ["".join(line[column].data for column in range(width)).rstrip() for line in self.screen.history.top]

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def transcript(self) -> list[str]:
        """Return every line, scrolled away or on the screen, without empty lines at the end."""
        lines = [*self.scrolled, *self.shown]
        while lines and not lines[-1]:
            del lines[-1]
        return lines


class _File(io.StringIO):
    def __init__(self, emulator: Emulator) -> None:
        super().__init__()
        self._emulator = emulator

    def write(self, text: str) -> int:
        self._emulator.feed(text)
        return len(text)

    def isatty(self) -> bool:
        return True


class Terminal:
    """An emulator with a view and a manual clock."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.emulator = Emulator(width, height)
        self.console = Console(
            file=_File(self.emulator), force_terminal=True, color_system="256", width=width, height=height
        )
        self.screen = Screen(self.console)
        self.now = 100.0
        self.view = LiveView(self.screen, lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.view.paint()

    @property
    def transcript(self) -> list[str]:
        return self.emulator.transcript

    @property
    def shown(self) -> list[str]:
        return [line for line in self.emulator.shown if line]


def printed(renderables: Sequence[RenderableType], width: int) -> list[str]:
    """Return the lines that Rich prints without a terminal."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for renderable in renderables:
        console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    # NFC, as the emulator stores letters with their accents as one character.
    lines = [line.rstrip() for line in unicodedata.normalize("NFC", console.file.getvalue()).split("\n")]
    while lines and not lines[-1]:
        del lines[-1]
    return lines
