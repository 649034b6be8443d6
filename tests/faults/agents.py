"""The agents of the servers that are tortured. What they say can be checked by whoever reads it.

Each word is the number of the word, so that a missing or a doubled one is seen; the first thing said is where and when
it was said, by a clock that all processes of a machine share.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator

from turnwire.core.approvals import WaitForApproval
from turnwire.core.events import (
    ApprovalRequestEvent,
    CustomEvent,
    Event,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.turns import Turn

Said = AsyncIterator[Event | str]


def clock() -> CustomEvent:
    return CustomEvent("clock", {"node": os.environ.get("FAULTS_NODE", ""), "at": time.monotonic()})


async def counting(turn: Turn) -> Said:
    """`<words> <seconds between them>`, with a tool now and then."""
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


async def stubborn(turn: Turn) -> Said:
    """Takes its time to stop."""
    try:
        async for said in counting(turn):
            yield said
    finally:
        await asyncio.sleep(0.3)


async def asking(turn: Turn) -> Said:
    """Asks a person in the middle."""
    words, pause = turn.message.split()
    half = int(words) // 2
    yield clock()
    if turn.resumption is None:
        for number in range(half):
            yield f"{number} "
            await asyncio.sleep(float(pause))
        raise WaitForApproval([ApprovalRequestEvent("c1", "pay", {"amount": half})], str(half).encode())
    assert turn.resumption.checkpoint == str(half).encode()
    for number in range(half, int(words)):
        yield f"{number} "
        await asyncio.sleep(float(pause))
    yield clock()


async def resuming(turn: Turn) -> Said:
    """Says it all again from the last finished step, when its worker was lost."""
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


resuming.on_crash = "resume"  # type: ignore[attr-defined]
resuming.repeats = lambda tool: True  # type: ignore[attr-defined]

ALL = ("counting", "stubborn", "asking", "resuming")
