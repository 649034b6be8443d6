"""The terminal's lower edge: lines that stay, and below them a few that are replaced.

What stays is written once and scrolls away as in any program, so it can be searched, copied and scrolled back to.
What is replaced never grows beyond the screen, because a line that has scrolled off cannot be taken back.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

# Terminals that know it show all that is between the two at once; the others ignore it.
_HOLD, _RELEASE = "\x1b[?2026h", "\x1b[?2026l"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

Line = list[Segment]


@cache
def the_screen() -> "Screen":
    """The terminal of this process: there is only one, whoever writes to it."""
    return Screen(terminal_console())


def terminal_console(*, plain: bool = False) -> Console:
    """A console on the standard output, as large as the terminal is and not as a variable says that it was."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Console(highlight=False, color_system=None if plain else "auto", _environ=environment)


class Screen:
    """On a console without a colour system nothing is ever sent but text; then nothing can be replaced either."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.while_prompting: Callable[[Callable[[], None]], None] | None = None
        """Set while a prompt has the lower edge: calls what it is given when the prompt is out of the way."""
        self._owner: object | None = None
        self._widths: list[int] = []
        self._shown = ""

    def claim(self, owner: object) -> bool:
        """Whether this one may replace lines from now on: two would take back each other's."""
        if self._owner is None:
            self._owner = owner
        return self._owner is owner

    def release(self, owner: object) -> None:
        if self._owner is owner:
            self._owner = None

    @property
    def is_showing(self) -> bool:
        return bool(self._shown)

    def lines_of(self, renderable: RenderableType) -> list[Line]:
        return self.console.render_lines(renderable, pad=False)

    def say(self, *staying: RenderableType) -> None:
        """Lines from outside of a turn, also while somebody types at the prompt."""
        if self.while_prompting is not None:
            self.while_prompting(lambda: self.update(staying, ()))
        else:
            self.update(staying, ())

    def update(self, staying: Sequence[RenderableType], replaced: Sequence[Line]) -> None:
        """Writes what stays, and what is to stand below it from now on, in one go."""
        below = self._rendered([Segments(self._joined(replaced))] if replaced else [], end="")
        if not staying and below == self._shown:
            return
        text = f"{self._erasure()}{self._rendered(staying)}{below}"
        if below and not self._shown:
            text = _HIDE_CURSOR + text
        elif self._shown and not below:
            text += _SHOW_CURSOR
        if self.console.color_system is not None:
            text = f"{_HOLD}{text}{_RELEASE}"
        self._widths = [Segment.get_line_length(line) for line in replaced]
        self._shown = below
        self.console.file.write(text)
        self.console.file.flush()

    def _erasure(self) -> str:
        """Takes back what is replaced. A terminal that has become narrower has broken its lines anew."""
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
