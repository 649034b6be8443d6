"""A plain async function is an agent: what it returns is the answer, what it emits happens on the way."""

from collections.abc import AsyncIterator, Awaitable, Callable

from turnwire.core.contracts import OnCrash
from turnwire.core.events import Event
from turnwire.core.turns import Turn

AnswerFunction = Callable[[Turn], Awaitable[str | None]]


class FunctionAgent:
    """Wraps `async def answer(turn) -> str | None`. Its text may come by `emit(TokenEvent(...))` too."""

    takes_attachments = False
    on_crash: OnCrash = "close"
    repeats: Callable[[str], bool] | None = None

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        said = await self._answer(turn)
        if said:
            yield said
