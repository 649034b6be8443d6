import asyncio

from turnwire import Turn, Turnwire, emit
from turnwire.core.log.events import ToolCallEvent, ToolProgressEvent, ToolResultEvent


def count_letters(text: str) -> int:
    """A tool that blocks, so it runs in a thread; `emit` works there too."""
    for done in range(1, 4):
        emit(ToolProgressEvent("letters", f"part {done} of 3", done / 3))
    return len(text)


async def answer(turn: Turn):
    yield ToolCallEvent("letters", "count_letters", {"text": turn.message})
    letters = await asyncio.to_thread(count_letters, turn.message)
    yield ToolResultEvent("letters", "count_letters", True, letters)
    yield f"That is {letters} letters."


app = Turnwire(agent=answer, data="tools-data").asgi()
