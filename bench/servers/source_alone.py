"""`POST /source`: the cost of a server's source without a stream.

The response has the marker once per token, so that the client counts it like a stream. Other requests pass through.
"""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from bench.servers import COMPACT
from bench.servers.raw import message


def beside_its_source(app: ASGIApp, consume: Callable[[str], Awaitable[int]]) -> ASGIApp:
    """Add the route. `consume` runs the source for a message and returns the number of tokens."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/source":
            return await app(scope, receive, send)
        count = await consume(await message(receive))
        body = COMPACT.encode() * count
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return route
