"""Turnwire with its default store and an agent that yields Markdown at a pace, for the web page."""

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle, islice
from pathlib import Path

from starlette.types import ASGIApp

from turnwire import Settings, Turn, Turnwire

# All kinds of Markdown blocks, so that the page must lay out each.
PIECES = """\
## A heading of a few words

A paragraph of an answer, with **strong** and *soft* words, some `code`, and [a link](https://example.org/page). It goes
on for a while, as answers do, and says at its end where it has all of this from.

- one thing that is listed
- another thing, with `code` in it
  1. and one below it

| what | how much |
| --- | --- |
| tokens | 5,000 |
| a second | 200 |

```python
def answer(question: str) -> str:
    return "forty-two" if question else "what?"
```

> Somebody said this once.

""".replace(" ", "\x00 ").split("\x00")
# About as long as the tokens of a model.
SHORT = [part for piece in PIECES for part in (piece[:4], piece[4:]) if part]


async def answer(turn: Turn) -> AsyncIterator[str]:
    """Yield as many tokens as the message says, at as many per second; with 0, short ones as fast as it can."""
    count, pace = map(int, turn.message.split())
    if not pace:
        for piece in islice(cycle(SHORT), count):
            yield piece
        return
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number, piece in enumerate(islice(cycle(PIECES), count)):
        # By the clock, because added sleeps would be too slow.
        await asyncio.sleep(max(0, started + number / pace - loop.time()))
        yield piece


def app(data: Path | None) -> ASGIApp:
    if data is None:
        raise ValueError("the page variant needs a folder; pass --data DIR")
    return Turnwire(agent=answer, store="sqlite", data=data, settings=Settings()).asgi()
