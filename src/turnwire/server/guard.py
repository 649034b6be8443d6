"""The checks of every request: Host, Origin, CORS; and the headers that every answer gets."""

import re
from collections.abc import Iterable
from typing import Any

from turnwire.server.errors import HttpError
from turnwire.settings import Settings

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT = re.compile(r":\d+$")
_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_EXPOSED = (
    b"X-Turn-Id, X-Session-Id, X-Tokens-Left, Location, Retry-After, X-Run-Id, X-Workflow-Run-Id,"
    b" X-Workflow-Stream-Tail-Index"
)

_REQUEST_HEADERS = b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-API-Key, X-Run-Id, X-Session-Id"
_HEADER_NAME = re.compile(rb"[a-z0-9_-]{1,64}")
_MAX_OTHER_HEADERS = 32

Header = tuple[bytes, bytes]
Headers = list[Header]


class Guard:
    """Protects a server from pages of other origins, and answers preflight requests of allowed ones."""

    def __init__(self, settings: Settings, origins: Iterable[str] = ()) -> None:
        """`origins` are those that plugins allow."""
        self._hosts = frozenset(name.lower() for name in settings.allowed_hosts)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in (*settings.allowed_origins, *origins))

    def check(self, headers: dict[bytes, bytes], *, local_only: bool) -> Headers:
        """Return the headers to add to the answer. Raises HttpError 421 or 403.

        The Host check stops a web page from reaching this machine under its own name (DNS rebinding); the Origin check
        stops it from acting for the user where no key is needed.
        """
        host = _PORT.sub("", headers.get(b"host", b"").decode("latin-1").lower())
        if (local_only or self._hosts) and host not in _LOOPBACK_NAMES and host not in self._hosts:
            raise HttpError(
                421,
                "host_not_allowed",
                "this Host name is not allowed; add it to TURNWIRE_ALLOWED_HOSTS if it is yours",
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if not origin:
            return list(_ALWAYS)
        if origin in self._origins:
            return [
                *_ALWAYS,
                (b"access-control-allow-origin", headers[b"origin"]),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"Origin"),
            ]
        if local_only and not is_from_own_page(headers):
            raise origin_not_allowed()
        return list(_ALWAYS)

    def check_socket(self, headers: dict[bytes, bytes], *, local_only: bool) -> Headers:
        """Return the headers to add when a WebSocket is accepted. Raises HttpError 421 or 403.

        A browser lets any page open a WebSocket to any server with the user's cookies, so the page's origin must be
        allowed, or this server's own, whatever key it presents.
        """
        added = self.check(headers, local_only=local_only)
        if b"origin" in headers and not allows_origin(added) and not is_from_own_page(headers):
            raise origin_not_allowed()
        return added

    def preflight(self, method: str, headers: dict[bytes, bytes], added: Headers) -> Headers | None:
        """Return the headers of the answer to a preflight request, beside the `added`; None for any other request."""
        if method != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        if not allows_origin(added):
            raise origin_not_allowed()
        private = headers.get(b"access-control-request-private-network") == b"true"
        return [
            *([(b"access-control-allow-private-network", b"true")] if private else []),
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
            (
                b"access-control-allow-headers",
                b", ".join([_REQUEST_HEADERS, *_other_headers(headers)]),
            ),
            (b"access-control-max-age", b"600"),
        ]


def allows_origin(added: Headers) -> bool:
    """Return True if the headers that `Guard.check` adds allow the page's origin."""
    return any(name == b"access-control-allow-origin" for name, _ in added)


def origin_not_allowed() -> HttpError:
    return HttpError(
        403,
        "origin_not_allowed",
        "calls from this web origin are not allowed; add it to TURNWIRE_ALLOWED_ORIGINS if it is yours",
    )


def is_from_own_page(headers: dict[bytes, bytes]) -> bool:
    """Return True if a browser sends the request for a page of this server."""
    origin = headers.get(b"origin", b"").lower()
    if not origin:
        return headers.get(b"sec-fetch-site") == b"same-origin"
    # The scheme is not compared, because a proxy may terminate TLS.
    return origin.partition(b"://")[2] == headers.get(b"host", b"").lower()


def _other_headers(headers: dict[bytes, bytes]) -> list[bytes]:
    """Return the requested headers that this server does not use: those of a library, or of a proxy before it."""
    known = _REQUEST_HEADERS.lower().split(b", ")
    requested = headers.get(b"access-control-request-headers", b"").lower().split(b",")
    names = [name for name in map(bytes.strip, requested) if _HEADER_NAME.fullmatch(name) and name not in known]
    return names[:_MAX_OTHER_HEADERS]


def header_map(scope: dict[str, Any]) -> dict[bytes, bytes]:
    """Return the headers by lower-case name; the first value of a repeated name."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name, value)
    return headers
