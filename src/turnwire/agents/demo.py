"""A demonstration agent without a model: two tool calls with progress, reasoning, and an answer word by word."""

import asyncio
import re
import time
from collections.abc import AsyncIterator

from turnwire.core.emit import emit
from turnwire.core.events import (
    Event,
    ReasoningEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.turns import Turn

_WORD_SECONDS = 0.03
_STEP_SECONDS = 0.15


async def demo_agent(turn: Turn) -> AsyncIterator[Event | str]:
    """Count the words of the message and report the result."""
    yield StatusEvent("Reading your message")
    yield ReasoningEvent("Two things are worth knowing: how long it is, and what came before.")
    began = time.perf_counter()
    yield ToolCallEvent("call-1", "count_words", {"text": turn.message})
    words = await _count_words(turn.message)
    yield ToolResultEvent("call-1", "count_words", True, words, round((time.perf_counter() - began) * 1000, 1))
    yield ToolCallEvent("call-2", "recall", {"session_id": turn.session_id})
    earlier = sum(message.role == "user" for message in turn.history)
    yield ToolResultEvent("call-2", "recall", True, {"earlier_messages": earlier})
    answer = (
        f"You sent {words} word{'' if words == 1 else 's'}, after {earlier} earlier message"
        f"{'' if earlier == 1 else 's'} in this session. I am a demonstration: no model is behind me. Every line you"
        " see was committed to a log before it was sent, so you may close this stream now and come back"
        " to the exact event with the id you saw last."
    )
    pieces: list[str] = re.findall(r"\S+\s*", answer)
    for piece in pieces:
        await asyncio.sleep(_WORD_SECONDS)
        yield piece
    yield UsageEvent(model="demo", input_tokens=words, output_tokens=len(pieces))


async def _count_words(text: str) -> int:
    """Count words slowly, with progress events."""
    for done in (1, 2, 3):
        await asyncio.sleep(_STEP_SECONDS)
        emit(ToolProgressEvent("call-1", f"read {done} of 3 parts", done / 3))
    return len(text.split())
