"""The agents of the servers under test, whose output can be checked.

Each word is its own number, so that a missing or repeated word shows; `clock` events have the node and the time of the
monotonic clock, which all processes of a machine share.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator

from turnwire.core.journal.waits import approval
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CustomEvent,
    Event,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import Turn

Output = AsyncIterator[Event | str]


def clock() -> CustomEvent:
    return CustomEvent("clock", {"node": os.environ.get("FAULTS_NODE", ""), "at": time.monotonic()})


async def counting(turn: Turn) -> Output:
    """Yield words as the message says, `<words> <seconds between them>`, with a tool call now and then."""
    words, pause = turn.message.split()
    yield clock()
    for number in range(int(words)):
        if number % 20 == 10:
            yield ToolCallEvent(f"c{number}", "look", {"at": number})
            await asyncio.sleep(float(pause))
            yield ToolProgressEvent(f"c{number}", "looking")
            yield ToolResultEvent(f"c{number}", "look", True, str(number))
            yield clock()
        yield f"{number} "
        await asyncio.sleep(float(pause))
    yield clock()


async def stubborn(turn: Turn) -> Output:
    """Count, and take a while to stop."""
    try:
        async for event in counting(turn):
            yield event
    finally:
        await asyncio.sleep(0.3)


async def asking(turn: Turn) -> Output:
    """Count, and request an approval halfway."""
    words, pause = turn.message.split()
    half = int(words) // 2
    yield clock()
    for number in range(half):
        yield f"{number} "
        await asyncio.sleep(float(pause))
    await approval(ApprovalRequestEvent("c1", "pay", {"amount": half}))
    for number in range(half, int(words)):
        yield f"{number} "
        await asyncio.sleep(float(pause))
    yield clock()


async def resuming(turn: Turn) -> Output:
    """Count; after a lost worker, continue after the last finished step."""
    words, pause = turn.message.split()
    done = sum(message.role == "tool" for message in getattr(turn, "progress", ()))
    yield clock()
    for number in range(done * 10, int(words)):
        yield f"{number} "
        await asyncio.sleep(float(pause))
        if number % 10 == 9:
            yield ToolCallEvent(f"c{number}", "save", {"at": number})
            yield ToolResultEvent(f"c{number}", "save", True, str(number))
    yield clock()


async def aging(turn: Turn) -> Output:
    """Yield the time of the monotonic clock as often as the message says, `<words> <seconds between them>`."""
    words, pause = turn.message.split()
    for _ in range(int(words)):
        yield f"{time.monotonic()} "
        await asyncio.sleep(float(pause))


async def filling(turn: Turn) -> Output:
    """Yield events as the message says, `<number> <characters of each>`, and nothing for any other message."""
    number, _, size = turn.message.partition(" ")
    for _ in range(int(number) if number.isdecimal() else 0):
        yield StatusEvent("x" * int(size))


resuming.on_crash = "resume"  # type: ignore[attr-defined]
resuming.repeats = lambda tool: True  # type: ignore[attr-defined]

ALL = ("counting", "stubborn", "asking", "resuming", "aging", "filling")
