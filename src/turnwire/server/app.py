"""The ASGI app: guards first, then streams, then everything else.

Streams are plain ASGI endpoints, so that nothing wraps what is sent for each token. The other
routes are FastAPI's. Both go through the same checks, in one place, before any of their code runs.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

from turnwire.app import Turnwire
from turnwire.core.errors import TurnwireError
from turnwire.server.api.app import build_api
from turnwire.server.errors import HttpError, http_error, internal_error
from turnwire.server.exchange import OpenStream
from turnwire.server.guard import Guard, Headers, header_map
from turnwire.server.messages import path_of
from turnwire.server.pages import read_pages, send_page
from turnwire.server.payloads import respond, respond_json
from turnwire.server.router import RouteTable
from turnwire.server.sockets import OpenSocket, open_socket
from turnwire.server.streams.connection import Receive, Send
from turnwire.wires.openai.messages import in_dialect

logger = logging.getLogger("turnwire.server")

# What a form adds around the file in it.
_FORM_BYTES = 64 * 1024
_PUBLIC = frozenset({"/", "/healthz", "/readyz", "/docs", "/openapi.json", "/login", "/logout", "/v1/me"})
_METRICS = frozenset({"/metrics"})


class TurnwireApp:
    def __init__(self, turnwire: Turnwire) -> None:
        self.turnwire = turnwire
        self._guard = Guard(turnwire.settings)
        self._streams = RouteTable(turnwire)
        self._api = build_api(turnwire)
        self._public = _PUBLIC | _METRICS if turnwire.settings.open_metrics else _PUBLIC
        self._pages = read_pages()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            stream = await self._answer(scope, receive, send)
            if stream is not None:
                await stream.run(receive, send)
        elif scope["type"] == "websocket":
            await receive()  # It says no more than that the client would like to.
            socket = await self._open_socket(scope, send)
            if socket is not None:
                await socket.run(receive, send)
            else:
                await _gone(receive)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.turnwire.open()
        except TurnwireError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.turnwire.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> OpenStream | None:
        """Answers, or returns the stream that is the answer."""
        added: Headers = []
        path = path_of(scope)
        try:
            if not self.turnwire.is_open:
                await self.turnwire.open()  # Mounted inside an app that runs no lifespan of ours.
            headers, method = header_map(scope), scope["method"]
            local_only = self.turnwire.gatekeeper.is_local_only
            added = self._guard.check(method, headers, local_only=local_only)
            if self.turnwire.leaving.is_set():
                # Whoever keeps the connection for the next request would find it closed.
                added.append((b"connection", b"close"))
            preflight = self._guard.preflight(method, headers, added)
            if preflight is not None:
                await respond(send, 204, b"", preflight)
                return None
            page = self._pages.find(scope, path, headers)
            if page is not None:
                await send_page(send, scope, page, headers, added)
                return None
            receive = limited(receive, headers, self._most_bytes(method, path))
            caller = None if path in self._public else self.turnwire.gatekeeper.caller(scope, headers)
            endpoint = self._streams.find(method, path) if caller is not None else None
            if endpoint is not None and caller is not None:
                return await endpoint(scope, receive, send, caller, headers, added)
            scope["turnwire.caller"] = caller
            await self._call_api(scope, receive, with_headers(send, added))
        except TurnwireError as error:
            await _respond_error(send, in_dialect(path, http_error(error)), added)
        except HttpError as error:
            await _respond_error(send, in_dialect(path, error), added)
        except Exception:
            logger.exception("a request to %s failed", scope["path"])
            await _respond_error(send, in_dialect(path, internal_error()), added)
        return None

    async def _open_socket(self, scope: dict[str, Any], send: Send) -> OpenSocket | None:
        """The socket that was asked for; or answers why not."""
        try:
            if not self.turnwire.is_open:
                await self.turnwire.open()
            return open_socket(self.turnwire, self._guard, scope)
        except TurnwireError as error:
            refusal = http_error(error)
        except HttpError as error:
            refusal = error
        except Exception:
            logger.exception("a socket at %s could not be opened", scope["path"])
            refusal = internal_error()
        if "websocket.http.response" in scope.get("extensions", {}):
            await _respond_error(_before_socket(send), refusal, [])
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
        return None

    async def _call_api(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            await self._api(scope, receive, send)  # pyright: ignore[reportArgumentType]
        except Exception:
            # It has been answered; what is raised after that is for the log.
            logger.exception("a request to %s failed", scope["path"])

    def _most_bytes(self, method: str, path: str) -> int:
        settings = self.turnwire.settings
        if method == "POST" and path == "/v1/documents":
            return settings.max_document_bytes + _FORM_BYTES
        return settings.max_body_bytes


async def _respond_error(send: Send, error: HttpError, added: Headers) -> None:
    own = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await respond_json(send, error.status, error.body, [*added, *own])


async def _gone(receive: Receive) -> None:
    """uvicorn takes a socket that was refused for one that was forgotten, and logs an error, if it is still there when
    we return; it reports the end of the answer and that of the connection.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            for _ in range(2):
                await receive()


def _before_socket(send: Send) -> Send:
    """A `send` for the plain answer to somebody who asked for a socket."""

    async def send_instead(message: dict[str, Any]) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return send_instead


def with_headers(send: Send, added: Headers) -> Send:
    async def send_with_headers(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return send_with_headers


def limited(receive: Receive, headers: dict[bytes, bytes], limit: int) -> Receive:
    """A `receive` that refuses a body over the limit, before reading it where its length is told."""
    told = headers.get(b"content-length", b"0")
    if not told.isdigit() or int(told) > limit:
        raise _too_large(limit)
    received = 0

    async def receive_some() -> dict[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise _too_large(limit)
        return message

    return receive_some


def _too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body is over {limit:,} bytes", headers={"Connection": "close"})
