"""Adapters for plain functions: an async generator that yields its answer, and an async function that returns it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from turnwire.core.contracts import OnCrash
from turnwire.core.events import Event
from turnwire.core.turns import Turn

Answer = Callable[[Turn], AsyncIterator[Event | str]]
AnswerFunction = Callable[[Turn], Awaitable[str | None]]


class WrappedFunction:
    """The optional attributes of an agent, which the function that it wraps may declare."""

    takes_attachments = False
    on_crash: OnCrash = "close"
    journal: bool = False
    repeats: Callable[[str], bool] | None = None
    description: str | None = None
    starters: Sequence[str] = ()


class GeneratorAgent(WrappedFunction):
    """Wrapper of `async def answer(turn): yield ...`, which yields text or events."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        return self._answer(turn)


class FunctionAgent(WrappedFunction):
    """Wrapper of `async def answer(turn) -> str | None`. The text may also come from `emit(TokenEvent(...))`."""

    def __init__(self, answer: AnswerFunction) -> None:
        self._answer = answer

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        text = await self._answer(turn)
        if text:
            yield text
