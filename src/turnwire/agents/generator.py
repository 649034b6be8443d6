"""Adapter for an async generator function that yields text or events."""

from collections.abc import AsyncIterator, Callable

from turnwire.core.contracts import OnCrash
from turnwire.core.events import Event
from turnwire.core.turns import Turn

Answer = Callable[[Turn], AsyncIterator[Event | str]]


class GeneratorAgent:
    """Wrapper of `async def answer(turn): yield ...`."""

    takes_attachments = False
    on_crash: OnCrash = "close"
    repeats: Callable[[str], bool] | None = None

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return self._answer(turn)
