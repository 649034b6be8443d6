"""`POST /source`: what a server's source costs when nobody is told what it says.

The answer has the marker as often as there were tokens, so that the client counts it like a stream. Every other
request passes untouched.
"""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from bench.servers import COMPACT
from bench.servers.raw import message


def beside_its_source(app: ASGIApp, consume: Callable[[str], Awaitable[int]]) -> ASGIApp:
    """`consume` takes all that a message asks for and says how many tokens came."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/source":
            return await app(scope, receive, send)
        count = await consume(await message(receive))
        body = COMPACT.encode() * count
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return route
