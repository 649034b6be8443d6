"""The ASGI app: the guard's checks first, then the pages, then the routes.

Streams are plain ASGI responses, so that nothing wraps what is sent for each token. All routes go through the same
checks, in one place, before any of their code runs.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import cached_property
from typing import Any, Protocol

from turnwire.core.errors import TurnwireError
from turnwire.server.api import account, operations, sessions, turns
from turnwire.server.auth import Caller, WrongKeyError
from turnwire.server.brand import brand_of
from turnwire.server.errors import HttpError, body_too_large, http_error, internal_error
from turnwire.server.forms import FORM_BYTES
from turnwire.server.guard import Guard
from turnwire.server.openapi import build_document
from turnwire.server.pages import is_guide, read_pages, send_guide, send_page
from turnwire.server.request import Request
from turnwire.server.router import Access, AnyRoute, Json, OpenSocket, Route, Router
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.stream import Stream

logger = logging.getLogger("turnwire.server")

_API = (operations, account, sessions, turns)
_PROTOCOL = "turnwire"
_KEY_PROTOCOL = "turnwire.key."


class Lifespan(Protocol):
    """The owner of the services, which opens and closes them. Opening twice does no harm."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class TurnwireApp:
    """An ASGI app that serves the JSON API, the `routes` of wires and plugins, and the web pages."""

    def __init__(self, services: Services, routes: Sequence[AnyRoute], lifespan: Lifespan) -> None:
        document = Route("GET", "/openapi.json", self._show_document, "This document", "", access="public")
        self.routes: Sequence[AnyRoute] = [*routes, *(route for module in _API for route in module.routes()), document]
        self._services = services
        self.lifespan = lifespan
        origins = [origin for plugin in services.plugins.values() for origin in plugin.origins]
        self._guard = Guard(services.settings, origins)
        self._router = Router(self.routes)
        self._pages = read_pages(brand_of(services.settings), has_push=services.push is not None)

    @cached_property
    def document(self) -> Json:
        """Return the OpenAPI document."""
        return build_document(self.routes, self._services.version)

    async def _show_document(self, request: Request, services: Services) -> Json:
        return self.document

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
            route = match.nearest(method) if match is not None else None
            limit = self._max_bytes(route)
            request.receive = _limit_body(request.receive, request.headers, limit)
            access = route.access_with(services.settings) if route is not None else "any key"
            if access != "public":
                request.caller = services.auth.caller(request.scope, request.headers)
            if match is None:
                raise _unknown_path(path)
            route = match.route(method)
            request.params, request.route = match.params, route.path
            if access != "public":
                _check_access(request.caller, access)
            async with AsyncExitStack() as stack:
                if limit > services.settings.max_body_bytes:
                    slot = services.uploads.slot(request.caller.principal)
                    request.max_text_bytes = services.settings.max_body_bytes
                    request.receive = _share_room(request.receive, slot, stack, request.max_text_bytes)
                return await self._call(route, request)
        except Exception as error:
            refusal = await self._refusal(request, error)
        if match is not None:
            refusal = self._in_dialect(match.nearest(method), request, refusal)
        await request.respond_error(refusal)
        return None

    async def _call(self, route: Route, request: Request) -> Stream | None:
        """Call the endpoint of a route, and send its answer if that is JSON."""
        if route.takes_slot:
            public = route.access_with(self._services.settings) == "public"
            reader = f"address {request.address}" if public else request.caller.principal
            async with self._services.requests.slot(reader):
                await self._call_endpoint(route, request)
                # A large answer counts until the client has taken it.
                await request.answer_taken(self._services.settings.write_timeout)
            return None
        return await self._call_endpoint(route, request)

    async def _call_endpoint(self, route: Route, request: Request) -> Stream | None:
        answer = await route.endpoint(request, self._services)
        if isinstance(answer, dict):
            await request.respond_json(route.status, answer)
            return None
        return answer

    def _in_dialect(self, route: Route, request: Request, refusal: HttpError) -> HttpError:
        """Return an error as the clients of a route expect it."""
        path = None if route.resource_metadata is None else route.resource_metadata(self._services.settings)
        if refusal.status == 401 and path is not None:
            url = f"{request.base_url}{path}"
            refusal.headers["WWW-Authenticate"] = f'Bearer resource_metadata="{url}"'
        return route.dialect(refusal) if route.dialect is not None else refusal

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

    def _max_bytes(self, route: Route | None) -> int:
        settings = self._services.settings
        if route is not None and route.max_upload_bytes is not None:
            return route.max_upload_bytes(settings) + FORM_BYTES
        takes_files = route is not None and route.takes_files
        return max(settings.max_body_bytes, settings.max_message_bytes) if takes_files else settings.max_body_bytes


def _check_access(caller: Caller, access: Access) -> None:
    """Raise HttpError 403 if the caller lacks what a route needs."""
    if access == "operator":
        if not caller.is_operator:
            message = "this needs the operator's token, which is in the server's data folder"
            raise HttpError(403, "operator_only", message)
    elif access not in ("public", "any key"):
        caller.needs(access)


def _unknown_path(path: str) -> HttpError:
    # Most clients that try unknown paths are OpenAI's, so the fields of OpenAI's errors are added.
    message = f"there is no {path} on this server"
    return HttpError(404, "not_found", message, type="invalid_request_error", param=None)


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
