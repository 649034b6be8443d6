"""Authentication: API keys, login cookies, and the caller of a request with its scopes.

With no API key configured, only this machine may call, under a loopback Host name. As soon as a key exists, also a
revoked one, every call needs a key.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from turnwire.core import metrics
from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import KEYS, ApiKey, Scope, Store
from turnwire.core.errors import StoreError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.server.errors import HttpError
from turnwire.server.guard import is_from_own_page, origin_not_allowed

logger = logging.getLogger("turnwire.server")

ALL_SCOPES: tuple[Scope, ...] = ("read", "write", "approve")
"""The default scopes of a key. `operate` shows other users' turns, so it is given only on request."""
_LOCAL_SCOPES: tuple[Scope, ...] = (*ALL_SCOPES, "operate")
LOCAL_PRINCIPAL = "local"
_PREFIX = "tw_"
# The longest time until a change by another process is known here.
_REFRESH_SECONDS = 2.0
_COOKIE = "turnwire"
LOGIN_SECRET_NAME = "login_secret"
# How long a login lasts. Revoking the key, or a key that expires, ends it earlier.
LOGIN_SECONDS = 30 * 86_400.0
_SECRET_BYTES = 32
_REFUSAL_DELAY = Backoff(first=0.05, longest=2.0)
_MAX_WAITING_REFUSALS = 16
_MAX_ADDRESSES = 10_000
_SAFE_METHODS = ("GET", "HEAD")

Authenticate = Callable[[dict[str, Any]], str | None]
"""A host application's own authentication: takes the ASGI scope, and returns the principal or None."""


class WrongKeyError(HttpError):
    """A 401 for an invalid key, as opposed to a missing one."""


class Caller(Struct, frozen=True):
    """The principal of a request, and its scopes. `key_id` is the API key's, if there is one."""

    principal: str
    scopes: tuple[Scope, ...]
    key_id: str | None = None
    is_operator: bool = False
    is_logged_in: bool = False

    def needs(self, scope: Scope) -> None:
        """Raise HttpError 403 if the caller lacks a scope."""
        if scope not in self.scopes:
            raise HttpError(403, "forbidden", f"this API key lacks the scope {scope!r}")


def key_json(key: ApiKey) -> dict[str, Any]:
    """Return a key as the API and the CLI show it, without its hash."""
    return {
        "id": key.id,
        "principal": key.principal,
        "scopes": list(key.scopes),
        "created_at": time_text(key.created_at),
        "expires_at": time_text(key.expires_at),
        "revoked_at": time_text(key.revoked_at),
    }


class KeyRing:
    """The API keys, cached in memory. A key's text is `tw_<id>_<secret>`; only its hash is stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, ApiKey] = {}
        # Held while keys are read or changed, so that an older list never replaces a newer one.
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        async with self._changing:
            self._keys = {key.id: key for key in await self._store.list_keys()}

    async def follow_changes(self) -> None:
        """Read the keys again whenever another process changes them, until cancelled."""
        changed = asyncio.Event()
        unwatch = self._store.watch(KEYS, lambda _: changed.set())
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REFRESH_SECONDS):
                        await changed.wait()
                changed.clear()
                try:
                    await self.open()
                except StoreError as error:
                    logger.warning("the API keys could not be read again: %s", error)
        finally:
            unwatch()

    @property
    def is_empty(self) -> bool:
        return not self._keys

    def all(self) -> list[ApiKey]:
        return list(self._keys.values())

    async def create(
        self, principal: str, scopes: Sequence[Scope], expires_at: int | None = None
    ) -> tuple[ApiKey, str]:
        """Create a key, and return it with its text, which is never available again."""
        key_id = secrets.token_hex(6)
        text = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
        key = ApiKey(
            id=key_id,
            digest=_digest(text),
            principal=principal,
            scopes=tuple(scopes),
            created_at=now_ms(),
            expires_at=expires_at,
        )
        async with self._changing:
            await self._store.add_key(key)
            self._keys[key_id] = key
        return key, text

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key. Raises KeyNotFoundError."""
        async with self._changing:
            key = self._keys[key_id] = await self._store.revoke_key(key_id, now_ms())
        return key

    def find(self, text: str) -> ApiKey | None:
        """Return the valid key of this text."""
        key = self.valid(text.removeprefix(_PREFIX).partition("_")[0])
        return key if key is not None and hmac.compare_digest(key.digest, _digest(text)) else None

    def valid(self, key_id: str) -> ApiKey | None:
        """Return the key with this id; None if it is unknown, revoked or expired."""
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return None
        return key if key.expires_at is None or now_ms() < key.expires_at else None


class Logins:
    """Login cookies: a browser exchanges its key for a cookie, so that no script needs to hold the key."""

    def __init__(self, valid_key: Callable[[str], ApiKey | None], allowed_origins: Sequence[str] = ()) -> None:
        """`valid_key` returns a usable key by its id.

        Pages of the allowed origins may act for the user who is logged in. Cookies are signed with `secret`, which is
        in no database, so that nobody can forge a cookie from a copy of the database.
        """
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        self._valid_key = valid_key
        self._origins = frozenset(origin.rstrip("/").lower().encode("latin-1") for origin in allowed_origins)

    def key_of(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> ApiKey | None:
        """Return the key of a request's login cookie.

        A browser sends the cookie for other sites' pages too, so a request that can change something must come from an
        allowed origin. Raises HttpError 403.
        """
        key = next(filter(None, map(self._read, _cookie_values(scope, cookie_name(headers)))), None)
        is_safe = scope["type"] == "http" and scope["method"] in _SAFE_METHODS
        if key is not None and not is_safe:
            self.check_origin(headers)
        return key

    def check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Raise HttpError 403 if the request comes from a page that is not allowed."""
        if headers.get(b"origin", b"").lower() not in self._origins and not is_from_own_page(headers):
            raise origin_not_allowed()

    def cookie_for(self, key: ApiKey, scope: dict[str, Any], headers: dict[bytes, bytes]) -> str:
        """Return the value of a `Set-Cookie` header for a login with this key."""
        expires_at = now_ms() + int(LOGIN_SECONDS * 1000)
        if key.expires_at is not None:
            expires_at = min(expires_at, key.expires_at)
        seconds = max(0, expires_at - now_ms()) // 1000
        claim = f"{key.id}.{expires_at}"
        return _set_cookie(scope, headers, f"{claim}.{self._signature(key, claim)}", seconds)

    def expired_cookie(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> str:
        """Return the value of a `Set-Cookie` header that deletes the cookie."""
        return _set_cookie(scope, headers, "", 0)

    def _read(self, text: str) -> ApiKey | None:
        claim, _, signature = text.rpartition(".")
        key_id, _, until = claim.partition(".")
        key = self._valid_key(key_id)
        if key is None or not hmac.compare_digest(signature.encode(), self._signature(key, claim).encode()):
            return None
        return key if now_ms() < int(until) else None

    def _signature(self, key: ApiKey, claim: str) -> str:
        message = f"turnwire login {key.digest} {claim}"
        return hmac.new(self.secret, message.encode(), hashlib.sha256).hexdigest()


def read_login_secret(folder: Path) -> bytes:
    """Return the secret of the data folder that login cookies are signed with; create it if there is none."""
    path = folder / LOGIN_SECRET_NAME
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Written to a draft and then linked, so that processes that start at the same time read the same secret.
    draft = folder / f"{LOGIN_SECRET_NAME}.{secrets.token_hex(6)}"
    if not path.exists():
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    return path.read_bytes()


def cookie_name(headers: dict[bytes, bytes]) -> str:
    """Return the cookie's name, with the port: cookies ignore ports, and a machine may run two servers."""
    _, _, port = headers.get(b"host", b"").decode("latin-1").rpartition(":")
    return f"{_COOKIE}_{port}" if port.isdecimal() else _COOKIE


def _set_cookie(scope: dict[str, Any], headers: dict[bytes, bytes], value: str, seconds: int) -> str:
    path = scope.get("root_path", "") or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{cookie_name(headers)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"


def _cookie_values(scope: dict[str, Any], cookie: str) -> list[str]:
    """Return all values of a cookie: a name may be repeated, and HTTP/2 sends each cookie in its own header."""
    headers = (value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie")
    pairs = (pair.strip().partition("=") for header in headers for pair in header.split(";"))
    return [value for name, _, value in pairs if name == cookie]


class KeyRefusals:
    """Wrong keys by the address that they come from: counted, logged, and answered ever more slowly."""

    def __init__(self) -> None:
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        """Waits before an answer; tests replace it."""
        self._failures: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        """The answers that are delayed, by address."""

    async def note(self, address: str) -> None:
        """Delay the answer to a wrong key. Raises HttpError 429 if too many answers to this address wait already."""
        metrics.REFUSED_KEYS.add()
        if len(self._failures) >= _MAX_ADDRESSES:
            self._failures.clear()
        self._failures[address] += 1
        failures = self._failures[address]
        if failures & (failures - 1) == 0:  # Each power of two, so that nobody can fill the log.
            logger.warning("%d wrong API key(s) from %s", failures, address or "a local socket")
        if self.waiting[address] >= _MAX_WAITING_REFUSALS:
            raise HttpError(
                429, "too_many_requests", "too many wrong API keys; try again later", headers={"Retry-After": "10"}
            )
        self.waiting[address] += 1
        try:
            await self.sleep(_REFUSAL_DELAY.delay(failures))
        finally:
            self.waiting[address] -= 1
            if not self.waiting[address]:
                del self.waiting[address]

    def forget(self, address: str) -> None:
        """Forget the wrong keys of an address after a valid one: they may have been typing errors."""
        self._failures.pop(address, None)


class Authenticator:
    """Finds the caller of a request. `control_token` is the operator's, and readable only in the data folder."""

    def __init__(self, keys: KeyRing, control_token: str, authenticate: Authenticate | None, logins: Logins) -> None:
        self.refusals = KeyRefusals()
        self._keys = keys
        self._logins = logins
        self._control_token = control_token
        self._authenticate = authenticate

    @property
    def is_local_only(self) -> bool:
        return self._keys.is_empty and self._authenticate is None

    @property
    def takes_logins(self) -> bool:
        return self._authenticate is None and not self._keys.is_empty

    def caller(self, scope: dict[str, Any], headers: dict[bytes, bytes]) -> Caller:
        """Return the caller of a request. Raises HttpError 401 or 403."""
        text = _presented_key(headers)
        if text and hmac.compare_digest(text.encode(), self._control_token.encode()):
            return Caller(LOCAL_PRINCIPAL, _LOCAL_SCOPES, is_operator=True)
        if self._authenticate is not None:
            if principal := _checked_principal(self._authenticate(scope)):
                return Caller(principal, ALL_SCOPES)
        elif self._keys.is_empty:
            # A key is ignored here, because some clients always send one.
            if _is_loopback(scope.get("client")):
                return Caller(LOCAL_PRINCIPAL, _LOCAL_SCOPES)
            raise HttpError(
                403, "local_only", "no API key is configured, so only this machine may call; `turnwire keys create`"
            )
        elif text:
            key = self._keys.find(text)
            if key is not None:
                return Caller(key.principal, key.scopes, key.id)
        elif (key := self._logins.key_of(scope, headers)) is not None:
            return Caller(key.principal, key.scopes, key.id, is_logged_in=True)
        raise (WrongKeyError if text else HttpError)(
            401,
            "unauthorized",
            "send a valid API key as `Authorization: Bearer tw_...`"
            if self._authenticate is None
            else "nobody is signed in; sign in to this application first",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _checked_principal(found: object) -> str | None:
    """Return what `authenticate` has returned. Raises HttpError 500 if that is neither a name nor None."""
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, Coroutine):
        cast("Coroutine[object, object, object]", found).close()
    kind = type(cast("object", found)).__name__
    logger.error("authenticate returned a %s; it must be a plain function that returns a name or None", kind)
    raise HttpError(500, "authenticate_failed", "the server cannot tell who is calling; its log tells more")


def new_control_token() -> str:
    return f"twc_{secrets.token_urlsafe(32)}"


def _presented_key(headers: dict[bytes, bytes]) -> str:
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    kind, _, text = authorization.partition(" ")
    if kind.lower() == "bearer":
        return text.strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_loopback(client: Any) -> bool:
    # A client without an address uses a Unix socket, which its file permissions protect.
    return not client or _is_loopback_address(client[0])


@lru_cache(maxsize=64)
def _is_loopback_address(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
