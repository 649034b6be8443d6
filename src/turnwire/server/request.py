"""One HTTP request, or the opening request of a WebSocket, as an endpoint sees it."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from turnwire.core import metrics
from turnwire.core.log.codec import ascii_json
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, body_too_large
from turnwire.server.guard import Header, Headers, header_map
from turnwire.server.messages import Model, check_id, check_key, parse_fields, parse_json
from turnwire.server.streams.connection import Receive, Send

# Base64 in a data URL, or in a field that has a file.
_FILE_DATA = re.compile(rb'(?:;base64,|"(?:bytes|data|file_data|raw|value)"\s*:\s*")[A-Za-z0-9+/=_-]*')


class Request:
    """A request, and the way to answer it.

    `path` is relative to where the app is mounted, `params` are the path parameters by name, and `added` are the
    headers that every answer gets. The router sets `params` and the `route`, whose path is a template such as
    `/v1/turns/{id}/events`; authentication sets `caller`.
    """

    __slots__ = (
        *("_query", "added", "caller", "headers", "max_text_bytes", "method", "params", "path", "receive", "route"),
        *("scope", "send"),
    )

    caller: Caller

    def __init__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope.get("method", "GET")
        self.path = _path_below(scope["path"], scope.get("root_path", ""))
        self.headers = header_map(scope)
        self.params: Mapping[str, str] = {}
        self.route = ""
        self.added: Headers = []
        self.max_text_bytes: int | None = None
        """The most bytes of the body without its files."""
        self._query: dict[str, str] | None = None

    @property
    def root(self) -> str:
        """Return the path where the app is mounted."""
        return self.scope.get("root_path", "")

    @property
    def base_url(self) -> str:
        """Return the URL of the app, as the client has called it."""
        return f"{self.scope.get('scheme', 'http')}://{self.header(b'host')}{self.root}"

    @property
    def address(self) -> str:
        """Return the client's address; empty for a local socket."""
        return (self.scope.get("client") or ("",))[0]

    @property
    def query(self) -> dict[str, str]:
        """Return the fields of the query. Raises HttpError 400."""
        if self._query is None:
            text = self.scope["query_string"].decode("latin-1")
            try:
                self._query = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
            except ValueError:
                raise HttpError(400, "invalid_request", "the query has more than 50 fields") from None
        return self._query

    def header(self, name: bytes) -> str:
        """Return a header as text, empty if it was not sent."""
        return self.headers.get(name, b"").decode("latin-1").strip()

    def id_param(self, name: str = "id") -> str:
        """Return a path parameter that is an id. Raises HttpError 404 for text that cannot be one."""
        return check_id(self.params[name])

    @property
    def has_body(self) -> bool:
        return self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers

    @property
    def idempotency_key(self) -> str | None:
        """Return the `Idempotency-Key` header. Raises HttpError 422."""
        return check_key(self.header(b"idempotency-key"))

    async def json_body(self) -> bytes:
        """Return the body, unparsed. Raises HttpError 415 unless it is declared as JSON, and 400 if it is cut off."""
        return await read_json(self.receive, self.headers, self.max_text_bytes)

    def parse_query(self, model: type[Model]) -> Model:
        """Return the fields of the query. Raises HttpError 400 or 422."""
        return parse_fields(model, self.query)

    async def parse_body(self, model: type[Model]) -> Model:
        """Return the JSON object in the body. Raises HttpError 400, 413, 415 or 422."""
        return parse_json(model, await self.json_body())

    async def respond(self, status: int, body: bytes = b"", headers: Sequence[Header] = ()) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": [*self.added, *headers]})
        await self.send({"type": "http.response.body", "body": body})

    async def answer_taken(self, seconds: float) -> None:
        """Wait until most of the answer has left this process; abort the connection if that takes over `seconds`."""
        cycle: Any = getattr(self.send, "__self__", None)
        flow: Any = getattr(cycle, "flow", None)
        if flow is None or not flow.write_paused:
            return  # The buffer has room; or this is not uvicorn, whose buffer holds the whole answer.
        try:
            async with asyncio.timeout(seconds):
                await flow.drain()
        except TimeoutError:
            metrics.SLOW_READERS.add()
            cycle.transport.abort()

    async def respond_json(self, status: int, value: Any, headers: Sequence[Header] = ()) -> None:
        await self.respond_json_bytes(status, ascii_json(value), headers)

    async def respond_json_bytes(self, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
        await self.respond(status, body, [*headers, *body_headers(body)])

    async def respond_text(self, text: str, media_type: str) -> None:
        body = text.encode()
        await self.respond(200, body, body_headers(body, media_type))

    async def respond_error(self, error: HttpError) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        await self.respond_json_bytes(error.status, error.body, headers)


def body_headers(body: bytes, media_type: str = "application/json") -> Headers:
    """Return the headers of an answer that is for its caller alone."""
    return [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]


async def read_json(receive: Receive, headers: Mapping[bytes, bytes], max_text_bytes: int | None = None) -> bytes:
    """Return a body that is declared as JSON. Raises HttpError 400, 413 or 415.

    A web page can send any other content type to another origin without a preflight request.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not kind.endswith(b"+json"):
        raise HttpError(415, "unsupported_media_type", "send the body as `Content-Type: application/json`")
    body = b"".join([piece async for piece in body_pieces(receive)])
    if max_text_bytes is not None and len(body) > max_text_bytes:
        files = sum(match.end() - match.start() for match in _FILE_DATA.finditer(body))
        if len(body) - files > max_text_bytes:
            raise body_too_large(max_text_bytes)
    return body


async def body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises HttpError 400 if it is cut off."""
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, "disconnected", "the request was not complete")
        yield message.get("body", b"")
        has_more = message.get("more_body", False)


def _path_below(path: str, root: str) -> str:
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
