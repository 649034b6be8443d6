from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from turnwire import Turn, Turnwire


@asynccontextmanager
async def make() -> AsyncIterator[Any]:
    greetings = {"en": "Hello"}  # Here you would open a pool, and close it after the `yield`.

    async def answer(turn: Turn) -> str:
        return f"{greetings['en']}, {turn.principal}."

    yield answer


app = Turnwire(agent=make, data="factory-data").asgi()
