"""The route table: a route is declared once, for the router, for access and limits, and for the OpenAPI document."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from pydantic import BaseModel

from turnwire.core.contracts.stores import Scope
from turnwire.server.errors import HttpError
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.stream import Stream
from turnwire.settings import Settings

Json = dict[str, Any]
Endpoint = Callable[[Request, Services], Awaitable[Stream | Json | None]]
"""Returns the stream or the JSON object that is the answer; or answers itself, and returns None."""
Dialect = Callable[[HttpError], HttpError]
"""Rewrites an error in the shape that the clients of a protocol expect."""
Access = Scope | Literal["public", "any key", "operator"]
"""What a caller needs: no key, any key, a key with a scope, or the operator's token."""

_TAIL = ":path}"


class Parameter(Struct, frozen=True):
    """A parameter of a route as the OpenAPI document describes it."""

    name: str
    location: Literal["header", "path", "query"]
    description: str


class Route(Struct, frozen=True):
    """An endpoint at a method and a path, such as `/v1/turns/{id}/events`.

    A last segment `{name:path}` matches the rest of the path, slashes included. `resource_metadata` returns the path
    of the document that tells a client without a key where to get one (RFC 9728), if there is one.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    tag: str
    """The chapter of the OpenAPI document; a route without one is not listed."""
    parameters: Sequence[Parameter] = ()
    """Headers and fields of the query that the endpoint reads; path parameters only if they need a description."""
    body: type[BaseModel] | None = None
    responses: Mapping[str, Mapping[str, Any]] = {}
    """Response objects of the OpenAPI document by their status; a JSON object with `status` by default."""
    dialect: Dialect | None = None
    takes_files: bool = False
    """Whether the body may have files, and so be as large as `max_message_bytes`."""
    access: Access | Callable[[Settings], Access] = "any key"
    """Checked before the endpoint runs. The endpoint checks the rest, if that depends on what it is asked to do."""
    resource_metadata: Callable[[Settings], str | None] | None = None
    query: type[BaseModel] | None = None
    """The fields of the query, for an endpoint that calls `Request.parse_query`."""
    status: int = 200
    """The status of an answer that the endpoint returns as JSON."""
    max_upload_bytes: Callable[[Settings], int] | None = None
    """For a route whose body is a form with a file: the most bytes of the file."""
    takes_slot: bool = False
    """Whether a request counts, until the client has taken the answer, as one that reads from the store."""

    def access_with(self, settings: Settings) -> Access:
        return self.access(settings) if callable(self.access) else self.access


class RouteGroup:
    """Routes with one tag, each declared above its endpoint.

    A GET needs the scope `read` and takes a slot, others need `write`, unless they are declared otherwise.
    """

    def __init__(self, tag: str, **shared: Any) -> None:
        """`shared` are fields of all routes of the group."""
        self.tag = tag
        self.routes: list[Route] = []
        self._shared = shared

    def route(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        access: Access | Callable[[Settings], Access] | None = None,
        max_upload_bytes: Callable[[Settings], int] | None = None,
        **fields: Any,
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare the decorated endpoint; `fields` are further ones of `Route`."""
        fields = {"takes_slot": method == "GET", **self._shared, **fields, "max_upload_bytes": max_upload_bytes}
        access = access or ("read" if method == "GET" else "write")

        def declare(endpoint: Endpoint) -> Endpoint:
            self.routes.append(Route(method, path, endpoint, summary, self.tag, access=access, **fields))
            return endpoint

        return declare


class OpenSocket(Protocol):
    async def run(self, receive: Receive, send: Send) -> None: ...


class SocketRoute(Struct, frozen=True):
    """A WebSocket at a path. `socket` builds its handler; its last argument is the ASGI message that accepts it.

    A route without a summary shares its path with plain routes and is not in the OpenAPI document.
    """

    path: str
    socket: Callable[[Request, Services, dict[str, Any]], OpenSocket]
    summary: str = ""
    tag: str = ""


AnyRoute = Route | SocketRoute


def response(
    description: str, media_type: str | None = None, schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a response object of the OpenAPI document."""
    content = {"content": {media_type: {"schema": schema} if schema else {}}} if media_type else {}
    return {"description": description, **content}


class Match(Struct, frozen=True):
    """The routes of one path by their methods, and the path parameters."""

    routes: Mapping[str, Route]
    params: Mapping[str, str] = {}

    def nearest(self, method: str) -> Route:
        """Return the route of a method; for a method that the path does not have, one that is checked like it."""
        return self.routes.get(method) or next(iter(self.routes.values()))

    def route(self, method: str) -> Route:
        """Return the route of a method. Raises HttpError 405."""
        route = self.routes.get(method)
        if route is None:
            allowed = ", ".join(sorted(self.routes))
            raise HttpError(405, "method_not_allowed", f"only {allowed} is answered here", headers={"Allow": allowed})
        return route


class Router:
    """Finds routes: those without parameters in one lookup, the others among those with as many segments."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self.sockets: dict[str, SocketRoute] = {}
        self._literal: dict[str, dict[str, Route]] = {}
        self._templates: dict[int, dict[str, tuple[list[str], dict[str, Route]]]] = {}
        self._tails: dict[str, tuple[str, dict[str, Route]]] = {}
        for route in routes:
            if isinstance(route, Route):
                self._add(route)
            else:
                self.sockets[route.path] = route
                if route.summary:
                    self._add(Route("GET", route.path, _require_upgrade, route.summary, route.tag))

    def _add(self, route: Route) -> None:
        prefix, _, parameter = route.path.rpartition("{")
        if not prefix:
            self._literal.setdefault(route.path, {})[route.method] = route
        elif parameter.endswith(_TAIL):
            name = parameter.removesuffix(_TAIL)
            self._tails.setdefault(prefix, (name, {}))[1][route.method] = route
        else:
            segments = route.path.split("/")
            same_length = self._templates.setdefault(len(segments), {})
            same_length.setdefault(route.path, (segments, {}))[1][route.method] = route

    def match(self, path: str) -> Match | None:
        """Return the routes of a path; None if there are none."""
        if routes := self._literal.get(path):
            return Match(routes)
        segments = path.split("/")
        for template, routes in self._templates.get(len(segments), {}).values():
            if (params := _params(template, segments)) is not None:
                return Match(routes, params)
        for prefix, (name, routes) in self._tails.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return Match(routes, {name: path[len(prefix) :]})
        return None


def _params(template: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for expected, segment in zip(template, segments, strict=True):
        if expected.startswith("{"):
            if not segment:
                return None
            params[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return params


async def _require_upgrade(request: Request, services: Services) -> None:
    raise HttpError(426, "upgrade_required", "this is a WebSocket; open it as one", headers={"Upgrade": "websocket"})
