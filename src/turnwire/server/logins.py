"""Logins: a browser that has shown its key once is known by a cookie, so that no script needs to hold the key.

The cookie names the key and its own end, and is signed with what is kept of the key. So there is no table of logins:
every worker takes it, also after a restart, and it is void as soon as the key is.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Any

from turnwire.core.contracts import ApiKey
from turnwire.core.logged import now_ms
from turnwire.server.errors import HttpError
from turnwire.server.guard import is_from_own_page

_NAME = "turnwire"
_SAFE = ("GET", "HEAD")


class Logins:
    def __init__(
        self, valid_key: Callable[[str], ApiKey | None], lifetime: float, allowed_origins: Sequence[str] = ()
    ) -> None:
        """`valid_key` finds a key that may be used by its id; `lifetime` is in seconds.

        The origins are those of other pages that may act for whoever is logged in.
        """
        self._valid_key = valid_key
        self._lifetime = lifetime
        self._origins = frozenset(origin.rstrip("/").lower().encode("latin-1") for origin in allowed_origins)

    def key_of(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> ApiKey | None:
        """The key whose login a request presents.

        A browser sends the cookie also when it is another page that asks. So what is not a mere question must come
        from a page that may. Raises HttpError 403.
        """
        key = next(filter(None, map(self._read, _values(scope, cookie_name(headers)))), None)
        is_question = scope["type"] == "http" and scope["method"] in _SAFE
        if key is not None and not is_question:
            self.check_origin(headers)
        return key

    def check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Raises HttpError 403."""
        if headers.get(b"origin", b"").lower() not in self._origins and not is_from_own_page(headers):
            raise HttpError(403, "origin_not_allowed", "calls from this web origin are not allowed")

    def cookie_for(self, key: ApiKey, scope: dict[str, Any], headers: dict[bytes, bytes]) -> str:
        """The value of a `Set-Cookie` header."""
        expires_at = now_ms() + int(self._lifetime * 1000)
        if key.expires_at is not None:
            expires_at = min(expires_at, key.expires_at)
        seconds = max(0, expires_at - now_ms()) // 1000
        claim = f"{key.id}.{expires_at}"
        return _set_cookie(scope, headers, f"{claim}.{_signature(key, claim)}", seconds)

    def no_cookie(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> str:
        """The same, to forget it."""
        return _set_cookie(scope, headers, "", 0)

    def _read(self, text: str) -> ApiKey | None:
        claim, _, signature = text.rpartition(".")
        key_id, _, until = claim.partition(".")
        key = self._valid_key(key_id)
        if key is None or not hmac.compare_digest(signature.encode(), _signature(key, claim).encode()):
            return None
        return key if now_ms() < int(until) else None


def cookie_name(headers: dict[bytes, bytes]) -> str:
    """Cookies know no ports: two servers on one machine must not take each other's away."""
    _, _, port = headers.get(b"host", b"").decode("latin-1").rpartition(":")
    return f"{_NAME}_{port}" if port.isdecimal() else _NAME


def _set_cookie(scope: dict[str, Any], headers: dict[bytes, bytes], value: str, seconds: int) -> str:
    path = scope.get("root_path", "") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{cookie_name(headers)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"


def _values(scope: dict[str, Any], wanted: str) -> list[str]:
    """There may be several of one name, and HTTP/2 sends each cookie in a header of its own."""
    sent = (value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
    pairs = (pair.strip().partition("=") for header in sent for pair in header.split(";"))
    return [value for name, _, value in pairs if name == wanted]


def _signature(key: ApiKey, claim: str) -> str:
    """Of no use elsewhere: the key itself cannot be had from it, nor from what it is made with."""
    return hmac.new(f"turnwire login {key.digest}".encode(), claim.encode(), hashlib.sha256).hexdigest()
