"""Agents for the Telegram tests."""

import asyncio
from collections.abc import AsyncGenerator

from tests.channels.telegram.world import Agent, Piece
from turnwire.channels.telegram.client import Clock

TOKENS = [f"word{number:03d} " if number % 12 else f"word{number:03d}.\n\n" for number in range(1, 601)]
TEXT = "".join(TOKENS).strip()


def paced(clock: Clock, tokens: list[str], rate: float) -> Agent:
    """Return an agent that yields tokens at a steady rate, however slow its consumer is."""

    async def answer(text: str) -> AsyncGenerator[Piece]:
        began = clock.now()
        for number, token in enumerate(tokens):
            await clock.sleep(max(0.0, began + number / rate - clock.now()))
            yield token

    return answer


class Gated:
    """An agent that yields its pieces one by one, when the test lets it."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces
        self._gates = [asyncio.Event() for _ in range(len(pieces) + 1)]
        self._sent = [asyncio.Event() for _ in pieces]
        self._next = 0
        self.begun = 0

    async def __call__(self, text: str) -> AsyncGenerator[Piece]:
        self.begun += 1
        for piece, gate, sent in zip(self._pieces, self._gates, self._sent, strict=False):
            await gate.wait()
            yield piece
            sent.set()
        await self._gates[-1].wait()

    async def say(self, count: int = 1) -> None:
        """Let the next pieces pass, and wait until they have been taken."""
        for _ in range(count):
            self._gates[self._next].set()
            await self._sent[self._next].wait()
            self._next += 1

    def end(self) -> None:
        for gate in self._gates:
            gate.set()


def saying(*pieces: Piece) -> Agent:
    async def answer(text: str) -> AsyncGenerator[Piece]:
        for piece in pieces:
            yield piece

    return answer
