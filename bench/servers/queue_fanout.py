"""One turn for many readers, by hand: the producer puts each token into one queue per reader.

It has only the routes that the fan-out needs: no late readers, no resume.
"""

import asyncio
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from bench.servers.hand_queue import Item, frames
from bench.sources import tokens


class Broadcast:
    def __init__(self, message: str) -> None:
        self.readers: list[asyncio.Queue[Item]] = []
        self.producer = asyncio.create_task(self._produce(message))

    async def _produce(self, message: str) -> None:
        async for token in tokens(message):
            self._put({"type": "token", "content": token})
        self._put(None)

    def _put(self, item: Item) -> None:
        for queue in self.readers:
            queue.put_nowait(item)


turns: dict[str, Broadcast] = {}


async def session(request: Request) -> JSONResponse:
    return JSONResponse({"id": "bench"}, status_code=201)


async def start(request: Request) -> JSONResponse:
    turn_id = str(len(turns))
    turns[turn_id] = Broadcast((await request.json())["message"])
    return JSONResponse({"turn_id": turn_id}, status_code=202)


async def events(request: Request) -> StreamingResponse:
    queue: asyncio.Queue[Item] = asyncio.Queue()
    turns[request.path_params["turn_id"]].readers.append(queue)
    return StreamingResponse(frames(queue), media_type="text/event-stream")


def app(data: Path | None) -> ASGIApp:
    return Starlette(
        routes=[
            Route("/v1/sessions", session, methods=["POST"]),
            Route("/v1/sessions/{session_id}/turns", start, methods=["POST"]),
            Route("/v1/turns/{turn_id}/events", events),
        ]
    )
