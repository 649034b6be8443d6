"""Adapter for a plain async function: its return value is the answer, and it may `emit()` events."""

from collections.abc import AsyncIterator, Awaitable, Callable

from turnwire.core.contracts import OnCrash
from turnwire.core.events import Event
from turnwire.core.turns import Turn

AnswerFunction = Callable[[Turn], Awaitable[str | None]]


class FunctionAgent:
    """Wrapper of `async def answer(turn) -> str | None`. The text may also come from `emit(TokenEvent(...))`."""

    takes_attachments = False
    on_crash: OnCrash = "close"
    repeats: Callable[[str], bool] | None = None

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        text = await self._answer(turn)
        if text:
            yield text
