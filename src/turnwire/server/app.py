"""The ASGI app: the guard's checks first, then the routes of the wires, then FastAPI's.

Streams are plain ASGI responses, so that nothing wraps what is sent for each token. All routes go through the same
checks, in one place, before any of their code runs.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from typing import Any, Protocol

from turnwire.core.errors import TurnwireError
from turnwire.server.api.app import build_api
from turnwire.server.api.sessions import SHARED
from turnwire.server.auth import Caller, WrongKeyError
from turnwire.server.brand import brand_of
from turnwire.server.errors import HttpError, body_too_large, http_error, internal_error
from turnwire.server.guard import Guard, Headers
from turnwire.server.pages import PageHead, is_guide, read_pages, send_guide, send_page
from turnwire.server.request import Request
from turnwire.server.router import AnyRoute, Match, OpenSocket, Router
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.stream import Stream

logger = logging.getLogger("turnwire.server")

PUBLIC_PATHS = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/login", "/logout", "/v1/me"})
"""Paths that need no key."""
_METRICS = frozenset({"/metrics"})
_PROTOCOL = "turnwire"
_KEY_PROTOCOL = "turnwire.key."
# The bytes that a form adds to its file.
_FORM_BYTES = 64 * 1024
_UPLOAD = re.compile(r"/v1/sessions/[^/]+/files")
_START = re.compile(r"/v1/sessions/[^/]+/turns")


class Lifespan(Protocol):
    """The owner of the services, which opens and closes them. Opening twice does no harm."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class TurnwireApp:
    """An ASGI app that serves `routes`, FastAPI's routes and the web page."""

    def __init__(self, services: Services, routes: Sequence[AnyRoute], lifespan: Lifespan) -> None:
        self.api = build_api(services, routes)
        self._services = services
        self.lifespan = lifespan
        self._guard = Guard(services.settings)
        self._router = Router(routes)
        self._public = PUBLIC_PATHS | _METRICS if services.settings.open_metrics else PUBLIC_PATHS
        self._pages = read_pages(PageHead(brand_of(services.settings), services.push is not None))

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            stream = await self._answer(Request(scope, receive, send))
            if stream is not None:
                await stream.run(receive, send)
        elif scope["type"] == "websocket":
            await receive()  # `websocket.connect`, which says no more than the scope.
            socket = await self._open_socket(Request(scope, receive, send))
            if socket is not None:
                await socket.run(receive, send)
            else:
                await _refusal_sent(receive)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.lifespan.open()
        except TurnwireError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.lifespan.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request) -> Stream | None:
        """Answer a request, or return the stream that is the answer."""
        services, method, path = self._services, request.method, request.path
        match = self._router.match(path)
        try:
            if not services.lifecycle.is_open:
                await self.lifespan.open()  # Mounted inside an app that does not run our lifespan.
            added = self._guard.check(request.headers, local_only=services.auth.is_local_only)
            request.added = added
            if services.lifecycle.leaving.is_set():
                # A client that kept the connection for its next request would find it closed.
                added.append((b"connection", b"close"))
            preflight = self._guard.preflight(method, request.headers, added)
            if preflight is not None:
                await request.respond(204, headers=preflight)
                return None
            page = self._pages.find(request)
            if page is not None:
                await send_page(request, page)
                return None
            if is_guide(path):
                await send_guide(request)
                return None
            limit = self._max_bytes(method, path, match)
            request.receive = _limit_body(request.receive, request.headers, limit)
            is_public = self._is_public(path) or (match is not None and match.is_public(services.settings))
            caller = None if is_public else services.auth.caller(request.scope, request.headers)
            async with AsyncExitStack() as stack:
                if caller is not None and limit > services.settings.max_body_bytes:
                    slot = services.uploads.slot(caller.principal)
                    request.max_text_bytes = services.settings.max_body_bytes
                    request.receive = _share_room(request.receive, slot, stack, request.max_text_bytes)
                if match is not None:
                    route = match.route(method)
                    request.params, request.route = match.params, route.path
                    if caller is not None:
                        request.caller = caller
                    return await route.endpoint(request, services)
                request.scope["turnwire.caller"] = caller
                await self._call_api(request, caller)
            return None
        except Exception as error:
            refusal = await self._refusal(request, error)
        if refusal.status == 401 and services.settings.authorization_servers and match and match.resource_metadata:
            url = f"{request.base_url}{match.resource_metadata}"
            refusal.headers["WWW-Authenticate"] = f'Bearer resource_metadata="{url}"'
        dialect = match.dialect if match is not None else None
        await request.respond_error(dialect(refusal) if dialect is not None else refusal)
        return None

    async def _open_socket(self, request: Request) -> OpenSocket | None:
        """Return the socket of a request, or answer why it is refused."""
        try:
            if not self._services.lifecycle.is_open:
                await self.lifespan.open()
            return _find_socket(request, self._services, self._guard, self._router)
        except Exception as error:
            refusal = await self._refusal(request, error)
        if "websocket.http.response" in request.scope.get("extensions", {}):
            request.send = _plain_response(request.send)
            await request.respond_error(refusal)
        else:
            await request.send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
        return None

    async def _refusal(self, request: Request, error: Exception) -> HttpError:
        """Return the error response to a request that raised an error. Delay it if the request had a wrong key."""
        match error:
            case TurnwireError():
                return http_error(error)
            case WrongKeyError():
                try:
                    await self._services.auth.refusals.note(request.address)
                except HttpError as overload:
                    return overload
                return error
            case HttpError():
                return error
            case _:
                logger.exception("a request to %s failed", request.scope["path"], exc_info=error)
                return internal_error()

    async def _call_api(self, request: Request, caller: Caller | None) -> None:
        async with self._slot(request, caller):
            send = _with_headers(request.send, request.added)
            try:
                await self.api(request.scope, request.receive, send)  # pyright: ignore[reportArgumentType]
            except Exception:
                # FastAPI has answered already, and raises for the log.
                logger.exception("a request to %s failed", request.scope["path"])
            # A large answer counts until the client has taken it.
            await request.answer_taken(self._services.settings.write_timeout)

    def _slot(self, request: Request, caller: Caller | None) -> AbstractAsyncContextManager[None]:
        """Return a slot for a request that reads. Others write little, or have limits of their own."""
        if request.method not in ("GET", "HEAD"):
            return nullcontext()
        if caller is not None:
            return self._services.requests.slot(caller.principal)
        if request.path.startswith(SHARED):
            return self._services.requests.slot(f"address {request.address}")
        return nullcontext()

    def _is_public(self, path: str) -> bool:
        # The token of a shared session takes the place of a key.
        return path in self._public or path.startswith(SHARED)

    def _max_bytes(self, method: str, path: str, match: Match | None) -> int:
        settings = self._services.settings
        if method != "POST":
            return settings.max_body_bytes
        if path == "/v1/documents":
            return settings.max_document_bytes + _FORM_BYTES
        if _UPLOAD.fullmatch(path):
            return settings.max_file_bytes + _FORM_BYTES
        takes_files = match.takes_files(method) if match is not None else _START.fullmatch(path) is not None
        return max(settings.max_body_bytes, settings.max_message_bytes) if takes_files else settings.max_body_bytes


def _find_socket(request: Request, services: Services, guard: Guard, router: Router) -> OpenSocket:
    """Return the socket of a request. Raises HttpError, TooManyStreamsError, ShuttingDownError.

    The Host, the page's origin and the key are checked before a socket is accepted.
    """
    added = guard.check_socket(request.headers, local_only=services.auth.is_local_only)
    request.caller = services.auth.caller(request.scope, _with_key(request))
    route = router.sockets.get(request.path)
    if route is None:
        raise HttpError(404, "not_found", "there is no socket here")
    request.route = route.path
    with services.streams.room(request.caller.principal):
        protocol = _PROTOCOL if _PROTOCOL in request.scope.get("subprotocols", ()) else None
        acceptance = {"type": "websocket.accept", "subprotocol": protocol, "headers": added}
        return route.socket(request, services, acceptance)


def _with_key(request: Request) -> dict[bytes, bytes]:
    """Return the headers, with the key of the subprotocol `turnwire.key.<key>` if there is none.

    A browser cannot send headers with a WebSocket, and a key in the URL would be logged.
    """
    headers = request.headers
    if b"authorization" in headers or b"x-api-key" in headers:
        return headers
    offered = (name for name in request.scope.get("subprotocols", ()) if name.startswith(_KEY_PROTOCOL))
    key = next(offered, "").removeprefix(_KEY_PROTOCOL)
    return {**headers, b"authorization": f"Bearer {key}".encode("latin-1", "replace")} if key else headers


async def _refusal_sent(receive: Receive) -> None:
    """Wait until the refusal was sent and the connection has closed.

    If a refused socket is still connected when the app returns, uvicorn logs an error, as if the app had not answered.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            for _ in range(2):
                await receive()


def _plain_response(send: Send) -> Send:
    """Return a `send` for a plain HTTP response to a WebSocket request."""

    async def send_response(message: dict[str, Any]) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return send_response


def _with_headers(send: Send, added: Headers) -> Send:
    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [*message["headers"], *added]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))  # Answers are for one principal.
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


def _limit_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> Receive:
    """Return a `receive` that refuses a body over the limit, unread if its declared length is."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > limit:
        raise body_too_large(limit)
    received = 0

    async def receive_limited() -> dict[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise body_too_large(limit)
        return message

    return receive_limited


def _share_room(receive: Receive, slot: AbstractAsyncContextManager[None], stack: AsyncExitStack, size: int) -> Receive:
    """Return a `receive` that holds a slot while it reads a body of more than `size` bytes."""
    received, is_held = 0, False

    async def receive_in_turn() -> dict[str, Any]:
        nonlocal received, is_held
        message = await receive()
        received += len(message.get("body", b""))
        if received > size and not is_held:
            is_held = True
            await stack.enter_async_context(slot)
        if not message.get("more_body", False):
            await stack.aclose()
        return message

    return receive_in_turn
