"""Who may open a WebSocket, and which one.

Everything is checked before the socket is accepted: the Host, the page's origin, the key. A browser cannot send
headers with a WebSocket, so the key may also come as a subprotocol, `turnwire.key.<key>`; never in the address, which
is logged.
"""

import re
from collections.abc import Callable
from typing import Any, Protocol

from turnwire.app import Turnwire
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import Request, Routes
from turnwire.server.guard import Guard, Headers, header_map
from turnwire.server.messages import path_of
from turnwire.server.streams.connection import Receive, Send
from turnwire.wires.ai_sdk.socket import ChatSocket
from turnwire.wires.openai.socket import ResponseSocket
from turnwire.wires.websocket.routes import TurnSocket

_PROTOCOL = "turnwire"
_KEY_PROTOCOL = "turnwire.key."


class OpenSocket(Protocol):
    async def run(self, receive: Receive, send: Send) -> None: ...


OpenSocketFor = Callable[[Turnwire, Request, Caller, dict[str, Any]], OpenSocket]
"""The last argument is the ASGI message that accepts it."""

_SOCKETS: dict[str, OpenSocketFor] = {
    "/v1/ws": TurnSocket,
    "/api/chat/ws": ChatSocket,
    "/v1/responses": ResponseSocket,
}


class SocketRoutes:
    """For those who ask with plain HTTP; a socket is opened by `open_socket`."""

    def __init__(self, turnwire: Turnwire) -> None:
        self.routes: Routes = tuple(("GET", re.compile(path), _ask_for_upgrade) for path in PATHS)


async def _ask_for_upgrade(
    scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
) -> None:
    raise HttpError(426, "upgrade_required", "this is a WebSocket; open it as one", headers={"Upgrade": "websocket"})


def open_socket(turnwire: Turnwire, guard: Guard, scope: Request) -> OpenSocket:
    """Raises HttpError, TooManyStreamsError, ShuttingDownError."""
    headers = header_map(scope)
    added = guard.check_socket(headers, local_only=turnwire.gatekeeper.is_local_only)
    caller = turnwire.gatekeeper.caller(scope, _with_key(scope, headers))
    found = _SOCKETS.get(path_of(scope))
    if found is None:
        raise HttpError(404, "not_found", "there is no socket here")
    with turnwire.streams.room(caller.principal):
        protocol = _PROTOCOL if _PROTOCOL in scope.get("subprotocols", ()) else None
        return found(turnwire, scope, caller, {"type": "websocket.accept", "subprotocol": protocol, "headers": added})


def _with_key(scope: Request, headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    if b"authorization" in headers or b"x-api-key" in headers:
        return headers
    offered = (name for name in scope.get("subprotocols", ()) if name.startswith(_KEY_PROTOCOL))
    key = next(offered, "").removeprefix(_KEY_PROTOCOL)
    return {**headers, b"authorization": f"Bearer {key}".encode("latin-1", "replace")} if key else headers


PATHS: dict[str, Any] = {
    path: {"get": {"tags": [tag], "summary": summary, "responses": {"101": {"description": "A WebSocket"}}}}
    for path, tag, summary in (
        ("/v1/ws", "turns", "Many turns on one WebSocket: start, follow, cancel, approve"),
        ("/api/chat/ws", "ai sdk", "Chats on one WebSocket: the AI SDK's `WebSocketChatTransport`"),
    )
}
