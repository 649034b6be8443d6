"""What can be said of a turn in a terminal, and the words for it. `rendering` draws it, `plain` writes it."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

Tone = Literal["quiet", "good", "bad", "warning"]
MARKS: dict[Tone, str] = {"quiet": "·", "good": "✓", "bad": "✗", "warning": "■"}

_VALUE_LENGTH = 40


class Source(Struct, frozen=True):
    """What a number in the answer stands on, as a person reads it."""

    index: int
    title: str
    quote: str = ""
    url: str = ""


class View(Protocol):
    """One answer, while it is made. `depth` is how many agents deep in others a step is."""

    def hear(self, body: bytes) -> None:
        """An event as it stands in the log, before it is told in words."""
        ...

    def write(self, piece: str) -> None:
        """A piece of the answer, Markdown."""
        ...

    def begin(self, key: str, label: str, depth: int = 0) -> None:
        """Something goes on until `end`, which may never come."""
        ...

    def progress(self, key: str, text: str) -> None: ...

    def end(self, key: str, label: str, *, succeeded: bool, ms: float | None = None, depth: int = 0) -> None: ...

    def hint(self, text: str | None) -> None:
        """What goes on as long as no step does, such as thinking; it is not kept."""
        ...

    def notice(self, text: str | None) -> None:
        """Something that is more urgent than any step, until it is taken back; it is not kept."""
        ...

    def line(self, text: str, tone: Tone = "quiet", depth: int = 0) -> None: ...

    def finish(self) -> None:
        """The turn has ended; what has not, will not."""
        ...

    def cite(self, sources: Sequence[Source]) -> None: ...

    def type(self, text: str) -> None:
        """What is being typed meanwhile, for the next message."""
        ...

    def ask(self, question: str | None) -> None:
        """A question that waits for a key, or none any more."""
        ...

    def paint(self) -> None:
        """Brings what is seen up to date. Called several times a second."""
        ...

    def close(self) -> None:
        """The turn is over: nothing is replaced any more."""
        ...


def duration(ms: float) -> str:
    seconds = ms / 1000
    if seconds < 10:
        return f"{seconds:.1f}s"
    return f"{seconds:.0f}s" if seconds < 60 else f"{int(seconds) // 60}m{int(seconds) % 60:02}s"


def one_line(text: str, length: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def call_label(tool: str, args: dict[str, Any]) -> str:
    """A tool and what it was given, such as `search(query='moss')`."""
    told = ", ".join(f"{name}={one_line(repr(value), _VALUE_LENGTH)}" for name, value in args.items())
    return f"{tool}({told})" if told else tool
