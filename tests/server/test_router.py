"""The router: literal paths, templates, tails, methods and dialects."""

import pytest

from turnwire.server.errors import HttpError
from turnwire.server.request import Request
from turnwire.server.router import Route, Router, SocketRoute
from turnwire.server.services import Services
from turnwire.server.streams.socket import SocketHandler


async def endpoint(request: Request, services: Services) -> None: ...


def shout(error: HttpError) -> HttpError:
    return HttpError(error.status, error.code.upper(), str(error))


def route(method: str, path: str, **fields: object) -> Route:
    return Route(method, path, endpoint, "", "", **fields)  # type: ignore[arg-type]


ROUTER = Router(
    [
        route("POST", "/chat"),
        route("GET", "/turns/{id}/events"),
        route("POST", "/turns/{id}/events"),
        route("GET", "/turns/{id}/{part}"),
        route("GET", "/models/{id:path}", dialect=shout),
        SocketRoute("/ws", SocketHandler, "A socket"),  # type: ignore[type-abstract]
        SocketRoute("/chat", SocketHandler),  # type: ignore[type-abstract]
    ]
)


@pytest.mark.parametrize(
    ("path", "template", "params"),
    [
        ("/chat", "/chat", {}),
        ("/turns/t1/events", "/turns/{id}/events", {"id": "t1"}),
        ("/turns/t1/log", "/turns/{id}/{part}", {"id": "t1", "part": "log"}),
        ("/models/org/name", "/models/{id:path}", {"id": "org/name"}),
        ("/ws", "/ws", {}),
    ],
)
def test_match_returns_the_route_and_its_parameters(path: str, template: str, params: dict[str, str]) -> None:
    match = ROUTER.match(path)
    assert match is not None
    assert {route.path for route in match.routes.values()} == {template}
    assert match.params == params


@pytest.mark.parametrize("path", ["/", "/chat/", "/turns//events", "/turns/t1", "/models/", "/turns/t1/events/more"])
def test_match_of_an_unknown_path_is_none(path: str) -> None:
    assert ROUTER.match(path) is None


def test_method_that_a_path_does_not_have_is_a_405_with_allow() -> None:
    match = ROUTER.match("/turns/t1/events")
    assert match is not None
    assert match.route("POST").method == "POST"
    with pytest.raises(HttpError) as refused:
        match.route("DELETE")
    assert (refused.value.status, refused.value.headers) == (405, {"Allow": "GET, POST"})


def test_dialect_is_a_property_of_the_route() -> None:
    plain, loud = ROUTER.match("/chat"), ROUTER.match("/models/m")
    assert plain is not None
    assert loud is not None
    assert plain.nearest("POST").dialect is None
    # An error about the method has the shape that the path's clients expect.
    assert loud.nearest("DELETE").dialect is shout


def test_socket_without_summary_adds_no_plain_route() -> None:
    match = ROUTER.match("/chat")
    assert match is not None
    assert set(match.routes) == {"POST"}
    assert set(ROUTER.sockets) == {"/ws", "/chat"}
