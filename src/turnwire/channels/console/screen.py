"""The terminal's lower edge: permanent lines, and below them a few live lines that are redrawn.

Permanent lines are written once and scroll away as in any program, so they can be searched and copied. Live lines never
exceed the screen, because a line that has scrolled off cannot be erased.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

# Synchronized output: terminals that know it show everything between the two at once; others ignore it.
_HOLD, _RELEASE = "\x1b[?2026h", "\x1b[?2026l"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

Line = list[Segment]


@cache
def process_screen() -> "Screen":
    """Return the one screen of this process's terminal."""
    return Screen(terminal_console())


def terminal_console(*, plain: bool = False) -> Console:
    """Return a console on the standard output, with the terminal's real size instead of a stale `COLUMNS`."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Console(highlight=False, color_system=None if plain else "auto", _environ=environment)


class Screen:
    """The lower edge of one console. Without a colour system only text is written, and nothing is redrawn."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.while_prompting: Callable[[Callable[[], None]], None] | None = None
        """Set while a prompt is open: a function that hides the prompt while it calls its argument."""
        self._owner: object | None = None
        self._widths: list[int] = []
        self._shown = ""

    def claim(self, owner: object) -> bool:
        """Reserve the live lines. Return False if another owner has them, because two would erase each other's."""
        if self._owner is None:
            self._owner = owner
        return self._owner is owner

    def release(self, owner: object) -> None:
        if self._owner is owner:
            self._owner = None

    def lines_of(self, renderable: RenderableType) -> list[Line]:
        return self.console.render_lines(renderable, pad=False)

    def print(self, *permanent: RenderableType) -> None:
        """Write permanent lines that belong to no answer, above the prompt if one is open."""
        if self.while_prompting is not None:
            self.while_prompting(lambda: self.update(permanent, ()))
        else:
            self.update(permanent, ())

    def update(self, permanent: Sequence[RenderableType], live: Sequence[Line]) -> None:
        """Write permanent lines and redraw the live lines below them, in one write."""
        below = self._rendered([Segments(self._joined(live))] if live else [], end="")
        if not permanent and below == self._shown:
            return
        text = f"{self._erasure()}{self._rendered(permanent)}{below}"
        if below and not self._shown:
            text = _HIDE_CURSOR + text
        elif self._shown and not below:
            text += _SHOW_CURSOR
        if self.console.color_system is not None:
            text = f"{_HOLD}{text}{_RELEASE}"
        self._widths = [Segment.get_line_length(line) for line in live]
        self._shown = below
        self.console.file.write(text)
        self.console.file.flush()

    def _erasure(self) -> str:
        """Return the codes that erase the live lines, which a narrower terminal may have wrapped."""
        if not self._widths:
            return ""
        width = max(1, self.console.width)
        rows = sum(max(1, -(-line // width)) for line in self._widths)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}\x1b[J"

    def _rendered(self, renderables: Sequence[RenderableType], end: str = "\n") -> str:
        with self.console.capture() as capture:
            for renderable in renderables:
                self.console.print(renderable, end=end)
        return capture.get()

    def _joined(self, lines: Sequence[Line]) -> list[Segment]:
        joined: list[Segment] = []
        for number, line in enumerate(lines):
            joined += [Segment.line(), *line] if number else line
        return joined
