"""What is checked of every request before anything else, and what is added to every answer."""

import re
from typing import Any

from turnwire.server.errors import HttpError
from turnwire.settings import Settings

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
# Where Obsidian's plugins call from: on a desktop, on iOS, on Android.
_OBSIDIAN = frozenset({"app://obsidian.md", "capacitor://localhost", "http://localhost"})
_PORT = re.compile(r":\d+$")
_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_EXPOSED = (
    b"X-Turn-Id, X-Session-Id, X-Tokens-Left, Location, Retry-After, X-Run-Id, X-Workflow-Run-Id,"
    b" X-Workflow-Stream-Tail-Index"
)

_ASKING_HEADERS = b"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-API-Key, X-Run-Id, X-Session-Id"
_CLIENT_FACT = re.compile(rb"x-stainless-[a-z-]{1,40}")

Header = tuple[bytes, bytes]
Headers = list[Header]


class Guard:
    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(name.lower() for name in settings.allowed_hosts)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)
        if settings.vault is not None if settings.allow_obsidian is None else settings.allow_obsidian:
            self._origins |= _OBSIDIAN

    def check(self, headers: dict[bytes, bytes], *, local_only: bool) -> Headers:
        """The headers to add to the answer. Raises HttpError 421 or 403.

        The Host check keeps a web page from reaching this machine under a name of its own; the Origin
        check keeps it from acting in the user's name where no key is asked for.
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
            raise HttpError(403, "origin_not_allowed", "calls from this web origin are not allowed")
        return list(_ALWAYS)

    def check_socket(self, headers: dict[bytes, bytes], *, local_only: bool) -> Headers:
        """The same for a WebSocket. Raises HttpError 421 or 403.

        A browser lets every page open one anywhere, with the user's cookies, and read it: so the page's origin must be
        allowed, or this server's own, whatever key is presented.
        """
        added = self.check(headers, local_only=local_only)
        is_allowed = any(name == b"access-control-allow-origin" for name, _ in added)
        if b"origin" in headers and not is_allowed and not is_from_own_page(headers):
            raise HttpError(403, "origin_not_allowed", "calls from this web origin are not allowed")
        return added

    def preflight(self, method: str, headers: dict[bytes, bytes], added: Headers) -> Headers | None:
        """Return the headers of the answer to a preflight request, beside the `added`; None for any other request."""
        if method != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        if not any(name == b"access-control-allow-origin" for name, _ in added):
            raise HttpError(403, "origin_not_allowed", "calls from this web origin are not allowed")
        private = headers.get(b"access-control-request-private-network") == b"true"
        return [
            *([(b"access-control-allow-private-network", b"true")] if private else []),
            (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE"),
            (
                b"access-control-allow-headers",
                b", ".join([_ASKING_HEADERS, *_client_facts(headers)]),
            ),
            (b"access-control-max-age", b"600"),
        ]


def is_from_own_page(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser says that it asks for a page of this server's own."""
    origin = headers.get(b"origin", b"").lower()
    if not origin:
        return headers.get(b"sec-fetch-site") == b"same-origin"
    # The scheme is not compared: a proxy in front of us may be the one who speaks TLS.
    return origin.partition(b"://")[2] == headers.get(b"host", b"").lower()


def _client_facts(headers: dict[bytes, bytes]) -> list[bytes]:
    """The headers in which OpenAI's library tells what it runs on, as far as it asks for them."""
    asked = headers.get(b"access-control-request-headers", b"").lower().split(b",")
    return [name for name in map(bytes.strip, asked) if _CLIENT_FACT.fullmatch(name)]


def header_map(scope: dict[str, Any]) -> dict[bytes, bytes]:
    """The headers by lower-case name; of repeated ones the first counts."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found.setdefault(name, value)
    return found
