"""The token source of every server under test.

A request's message describes its tokens: `yield 1000`, `paced 250 stamp`, `burst8 1000 gate`.

    yield     one turn of the event loop a token, as when each is its own upstream read
    burst8    eight tokens a turn of the loop
    paced     50 tokens a second by timer, each stream with its own random phase
    steady    20 tokens a second in the same way, each stamped with the time at which it was due
    stamp     a token is the 12-digit microsecond it was made at, so the client can tell its age
    gate      no token before `POST /bench/go`
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

TOKENS = tuple(f" token-{n:05}" for n in range(1000))
TOKENS_PER_SECOND = 50
STEADY_PER_SECOND = 20
BURST = 8
KINDS = ("yield", "burst8", "paced", "steady")

STAMP_DIGITS = 12
STAMP_MODULUS = 10**STAMP_DIGITS


class Gate:
    """Holds back the gated streams of this process until it is opened."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    async def passed(self) -> None:
        await self._open.wait()


GATE = Gate()


@dataclass(frozen=True)
class Order:
    """The request of one message to the source."""

    kind: str
    count: int
    stamped: bool = False
    gated: bool = False

    @classmethod
    def parse(cls, message: str) -> "Order":
        kind, count, *options = message.split()
        if kind not in KINDS or not set(options) <= {"stamp", "gate"}:
            raise ValueError(f"no such source: {message!r}; write KIND COUNT [stamp] [gate]")
        return cls(kind, int(count), "stamp" in options, "gate" in options)

    def __str__(self) -> str:
        words = [self.kind, str(self.count)]
        return " ".join(words + ["stamp"] * self.stamped + ["gate"] * self.gated)


def stamp() -> str:
    return f"{time.monotonic_ns() // 1000 % STAMP_MODULUS:012}"


def tokens(message: str) -> AsyncIterator[str]:
    order = Order.parse(message)
    return steady(order) if order.kind == "steady" else produce(order, TOKENS, stamp)


async def steady(order: Order) -> AsyncIterator[str]:
    """Yield stamped tokens on a fixed schedule, so that every delay, the agent's too, counts as age."""
    if order.gated:
        await GATE.passed()
    due = time.monotonic() + random.random() / STEADY_PER_SECOND
    for _ in range(order.count):
        # A timer may fire early, and a token must not be early.
        while (left := due - time.monotonic()) > 0:  # noqa: ASYNC110 - it waits for a time
            await asyncio.sleep(max(left, 0.001))
        yield f"{int(due * 1e6) % STAMP_MODULUS:012}"
        due += 1 / STEADY_PER_SECOND


async def produce(order: Order, items: Sequence[T], stamped: Callable[[], T]) -> AsyncIterator[T]:
    """Yield `order.count` of `items`, or as many calls of `stamped`, at the order's pace.

    A server that sends encoded frames passes frames; all others pass text.
    """
    if order.gated:
        await GATE.passed()
    size = len(items)
    burst = BURST if order.kind == "burst8" else 1
    paced = order.kind == "paced"
    clock = asyncio.get_running_loop().time
    due = clock() + random.random() / TOKENS_PER_SECOND
    for n in range(order.count):
        if paced:
            await asyncio.sleep(due - clock())
            due += 1 / TOKENS_PER_SECOND
        elif n % burst == 0:
            await asyncio.sleep(0)
        yield stamped() if order.stamped else items[n % size]
