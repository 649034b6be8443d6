"""The opening of WebSockets.

The Host, the page's origin and the key are checked before a socket is accepted. A browser cannot send headers with a
WebSocket, so the key may also come as a subprotocol, `turnwire.key.<key>`; never in the address, which is logged.
"""

from turnwire.server.errors import HttpError
from turnwire.server.guard import Guard
from turnwire.server.request import Request
from turnwire.server.router import OpenSocket, Router
from turnwire.server.services import Services

_PROTOCOL = "turnwire"
_KEY_PROTOCOL = "turnwire.key."


def open_socket(request: Request, services: Services, guard: Guard, router: Router) -> OpenSocket:
    """Return the socket of a request. Raises HttpError, TooManyStreamsError, ShuttingDownError."""
    added = guard.check_socket(request.headers, local_only=services.auth.is_local_only)
    request.caller = services.auth.caller(request.scope, _with_key(request))
    route = router.sockets.get(request.path)
    if route is None:
        raise HttpError(404, "not_found", "there is no socket here")
    with services.streams.room(request.caller.principal):
        protocol = _PROTOCOL if _PROTOCOL in request.scope.get("subprotocols", ()) else None
        acceptance = {"type": "websocket.accept", "subprotocol": protocol, "headers": added}
        return route.socket(request, services, acceptance)


def _with_key(request: Request) -> dict[bytes, bytes]:
    headers = request.headers
    if b"authorization" in headers or b"x-api-key" in headers:
        return headers
    offered = (name for name in request.scope.get("subprotocols", ()) if name.startswith(_KEY_PROTOCOL))
    key = next(offered, "").removeprefix(_KEY_PROTOCOL)
    return {**headers, b"authorization": f"Bearer {key}".encode("latin-1", "replace")} if key else headers
