"""The baseline: an ASGI app that sends pre-encoded frames, one per `send`."""

import json
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from bench.sources import TOKENS, Order, produce, stamp

HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


def frame(token: str) -> bytes:
    return b'data: {"type":"token","content":"%b"}\n\n' % token.encode()


FRAMES = tuple(frame(token) for token in TOKENS)


def stamped_frame() -> bytes:
    return frame(stamp())


async def message(receive: Receive) -> str:
    body, more = b"", True
    while more:
        part = await receive()
        body += part.get("body", b"")
        more = part.get("more_body", False)
    return json.loads(body)["message"]


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        # uvicorn takes this for "no lifespan".
        raise NotImplementedError("the raw app has no lifespan")
    order = Order.parse(await message(receive))
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    async for encoded in produce(order, FRAMES, stamped_frame):
        await send({"type": "http.response.body", "body": encoded, "more_body": True})
    await send({"type": "http.response.body"})


def app(data: Path | None) -> ASGIApp:
    return stream
