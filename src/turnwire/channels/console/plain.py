"""An answer while it is made, as plain text: for pipes, for files, for screen readers and `--plain`.

The answer goes to one file exactly as the agent wrote it, everything about it to another. Nothing is padded,
coloured or taken back.
"""

from collections.abc import Sequence
from typing import TextIO

from turnwire.channels.console.view import MARKS, Source, Tone, duration


class PlainView:
    def __init__(self, answer: TextIO, about: TextIO, *, share_a_terminal: bool = False) -> None:
        self._answer = answer
        self._about = about
        self._share = share_a_terminal
        self._is_mid_line = False

    def hear(self, body: bytes) -> None: ...

    def write(self, piece: str) -> None:
        self._answer.write(piece)
        self._answer.flush()
        if piece:
            self._is_mid_line = not piece.endswith("\n")

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        """Said when it ends: two lines for each step would be noise."""

    def progress(self, key: str, text: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None:
        took = "" if ms is None else f" {duration(ms)}"
        self.line(f"{label}{took}", "good" if succeeded else "bad", depth)

    def hint(self, text: str | None) -> None: ...

    def notice(self, text: str | None) -> None:
        if text is not None:
            self._tell(f"· {text}")

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        self._tell(f"{'  ' * depth}{MARKS[tone]} {text}")

    def finish(self) -> None: ...

    def cite(self, sources: Sequence[Source]) -> None:
        for source in sources:
            quote = f" “{source.quote}”" if source.quote else ""
            self._tell(f"[{source.index}] {source.title}{quote}{f' {source.url}' if source.url else ''}")

    def type(self, text: str) -> None: ...

    def ask(self, question: str | None) -> None:
        if question is not None:
            self._tell(question)

    def paint(self) -> None: ...

    def close(self) -> None:
        if self._is_mid_line:
            self.write("\n")

    def _tell(self, text: str) -> None:
        if self._share and self._is_mid_line:
            self.write("\n")
        self._about.write(f"{text}\n")
        self._about.flush()


class JsonView(PlainView):
    """The events themselves are the answer; of everything else only what went wrong on the way is told."""

    def hear(self, body: bytes) -> None:
        self._answer.write(f"{body.decode('ascii')}\n")
        self._answer.flush()

    def write(self, piece: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None: ...

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None:
        if tone in ("bad", "warning"):
            super().line(text, tone, depth)

    def cite(self, sources: Sequence[Source]) -> None: ...
