"""The usual hand-written server: a task fills an `asyncio.Queue`, a `StreamingResponse` empties it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from bench.sources import tokens

Item = dict[str, str] | None

# The loop keeps only a weak reference to a task.
producers: set[asyncio.Task[None]] = set()


async def fill(queue: asyncio.Queue[Item], message: str) -> None:
    async for token in tokens(message):
        await queue.put({"type": "token", "content": token})
    await queue.put(None)


async def frames(queue: asyncio.Queue[Item]) -> AsyncIterator[str]:
    while (item := await queue.get()) is not None:
        yield f"data: {json.dumps(item)}\n\n"


async def chat(request: Request) -> StreamingResponse:
    message = (await request.json())["message"]
    queue: asyncio.Queue[Item] = asyncio.Queue()
    producer = asyncio.create_task(fill(queue, message))
    producers.add(producer)
    producer.add_done_callback(producers.discard)
    return StreamingResponse(frames(queue), media_type="text/event-stream")


def app(data: Path | None) -> ASGIApp:
    return Starlette(routes=[Route("/chat/stream", chat, methods=["POST"])])
