"""The bench's own routes, in front of the server under test.

Every other request passes with its own `receive` and `send`, so nothing is added to a frame's path.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from bench.sources import GATE


def gated(app: ASGIApp) -> ASGIApp:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        match scope.get("path"):
            case "/bench/go":
                GATE.open()
            case "/bench/shut":
                GATE.shut()
            case "/bench/ready":
                pass
            case _:
                return await app(scope, receive, send)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    return route
