"""Web push: a notification in the user's browser when a turn that nobody watches has ended or asks for a decision.

The browser's push service forwards the message, which is encrypted for that browser (RFC 8291) and signed with this
server's key (VAPID, RFC 8292). Not promised: that a notification arrives; the log has everything.
"""

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import http_ece  # pyright: ignore[reportMissingTypeStubs]
import httpx
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct
from py_vapid import Vapid02  # pyright: ignore[reportMissingTypeStubs]

from turnwire.core.contracts.stores import Annotation, Store
from turnwire.core.errors import NotFoundError, StoreError, ToolError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import ascii_json, now_ms
from turnwire.core.log.turns import TurnRecord
from turnwire.core.metrics import PUSHES
from turnwire.server.outbound import post_to_client
from turnwire.tools.fetch import IPNetwork

logger = logging.getLogger("turnwire.push")

LOCAL_NETWORKS: list[IPNetwork] = []
"""Networks beside the public internet that push services may be in, without TLS. For tests."""
_OWNER = ""  # The server's key belongs to no principal: a principal's name is never empty.
_MAX_SUBSCRIPTIONS = 20
_MAX_TEXT = 120
_TIMEOUT = 10.0
_LIFETIME_SECONDS = 86_400
# The push service does not know the subscription (any more), or it was made for another key of this server.
_GONE = (401, 403, 404, 410)


class PushSubscription(Struct, frozen=True):
    """A browser's subscription: the address of its push service, and the keys that messages are encrypted with."""

    endpoint: str
    p256dh: str
    auth: str

    def check(self) -> None:
        """Raise ValueError, which names the field, if no message could be sent to it."""
        try:
            httpx.URL(self.endpoint)
        except httpx.InvalidURL as error:
            raise ValueError(f"endpoint: {error}") from None
        parts = urlsplit(self.endpoint)
        if (parts.scheme != "https" and not LOCAL_NETWORKS) or not parts.hostname:
            raise ValueError("endpoint: must be an https URL")
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), _decoded(self.p256dh))
        except ValueError:
            raise ValueError("keys.p256dh: is not a point of the curve P-256 in base64url") from None
        if len(_decoded(self.auth)) != 16:
            raise ValueError("keys.auth: is not 16 bytes in base64url")


class OpenStreams(Protocol):
    """Knows how many streams of this process a principal reads."""

    def opened_by(self, principal: str) -> int: ...


class PushNotifier:
    """Keeps subscriptions in the store, and notifies them. `contact` is the operator's address for push services."""

    def __init__(self, store: Store, streams: OpenStreams, contact: str, title: str) -> None:
        self._store = store
        self._streams = streams
        self._contact = contact
        self._title = title
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient | None = None

    async def public_key(self) -> str:
        """Return the key that browsers subscribe with."""
        key = (await self._private_key()).public_key()
        return _encoded(key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    async def subscribe(self, principal: str, subscription: PushSubscription) -> None:
        """Store a subscription, and remove the principal's oldest ones if there are too many.

        A browser has one; it belongs to whoever used the browser last.
        """
        key, value = _key_of(subscription.endpoint), ascii_json(msgspec.to_builtins(subscription))
        await self._store.annotate(
            Annotation(kind="push_subscription", key=key, principal=principal, at=now_ms(), value=value.decode("ascii"))
        )
        found = await self._store.list_annotations("push_subscription", principal)
        for old in sorted(found, key=lambda item: (item.key == key, item.at))[:-_MAX_SUBSCRIPTIONS]:
            await self._store.remove_annotations("push_subscription", principal, key=old.key)

    async def unsubscribe(self, principal: str, endpoint: str) -> None:
        await self._store.remove_annotations("push_subscription", principal, key=_key_of(endpoint))

    def notify(self, record: TurnRecord) -> None:
        """Notify the owner of a turn that has ended or waits, unless they are reading. Returns at once.

        A stream of the turn alone ends with it, so its reader is notified too; the page's service worker shows nothing
        while a window of the page is visible.
        """
        self._spawn(self._notify(record.principal, record.id))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    def _spawn(self, action: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self, principal: str, turn_id: str) -> None:
        if self._streams.opened_by(principal):
            return
        try:
            found = await self._store.list_annotations("push_subscription", principal, limit=_MAX_SUBSCRIPTIONS)
            if not found:
                return
            record = await self._store.find_turn(principal, turn_id)
            for annotation in found:
                await self._send(annotation, record)
        except NotFoundError:
            pass  # The turn was erased meanwhile.
        except StoreError:
            logger.exception("the owner of turn %s could not be notified", turn_id)

    async def _send(self, annotation: Annotation, record: TurnRecord) -> None:
        subscription = PushSubscription(**json.loads(annotation.value))
        result = await self._post(subscription, _payload(record, self._title), record)
        PUSHES.add(result)
        if result == "gone":
            await self._store.remove_annotations("push_subscription", annotation.principal, key=annotation.key)

    async def _post(self, subscription: PushSubscription, payload: bytes, record: TurnRecord) -> str:
        """Send one message. Return `delivered`, `gone` or `failed`."""
        url = httpx.URL(subscription.endpoint)
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        claims = {"sub": self._contact, "aud": origin, "exp": now_ms() // 1000 + _LIFETIME_SECONDS // 2}
        headers = {
            **_signature(await self._private_key(), claims),
            "content-encoding": "aes128gcm",
            "content-type": "application/octet-stream",
            "ttl": str(_LIFETIME_SECONDS),
            "urgency": "normal" if record.phase == "ended" else "high",
            # A later message about the same turn replaces this one while the browser is away.
            "topic": record.id.replace("-", ""),
        }
        if self._http is None:
            self._http = httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False)
        try:
            # The client chose the endpoint, so its address is checked.
            status = await post_to_client(
                self._http, subscription.endpoint, _encrypted(payload, subscription), headers, LOCAL_NETWORKS
            )
        except (ToolError, httpx.HTTPError) as error:
            logger.warning("a push message could not be sent: %s", type(error).__name__)
            return "failed"
        if 200 <= status < 300:
            return "delivered"
        if status in _GONE:
            return "gone"
        logger.warning("a push service answered %d", status)
        return "failed"

    async def _private_key(self) -> ec.EllipticCurvePrivateKey:
        """Return this server's key; create it if there is none. If several processes did, the oldest counts."""
        found = await self._store.list_annotations("push_key", _OWNER)
        if not found:
            key = ec.generate_private_key(ec.SECP256R1())
            value = _encoded(key.private_numbers().private_value.to_bytes(32, "big"))
            await self._store.annotate(
                Annotation(kind="push_key", key=new_id(), principal=_OWNER, at=now_ms(), value=value)
            )
            found = await self._store.list_annotations("push_key", _OWNER)
        return ec.derive_private_key(int.from_bytes(_decoded(found[-1].value), "big"), ec.SECP256R1())


def _signature(key: ec.EllipticCurvePrivateKey, claims: Mapping[str, object]) -> dict[str, str]:
    """Return the `Authorization` header of VAPID."""
    signer: Any = Vapid02(private_key=key)
    return signer.sign(dict(claims))


def _payload(record: TurnRecord, title: str) -> bytes:
    """Return what the page's service worker shows. It fits into the one record that browsers accept."""
    text = " ".join(record.message.split())
    return ascii_json(
        {
            "title": title,
            "kind": "ended" if record.phase == "ended" else "asks",
            "outcome": record.outcome,
            "message": text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…",
            "session_id": record.session_id,
            "turn_id": record.id,
        }
    )


def _encrypted(payload: bytes, subscription: PushSubscription) -> bytes:
    library: Any = http_ece
    return library.encrypt(
        payload,
        private_key=ec.generate_private_key(ec.SECP256R1()),
        dh=_decoded(subscription.p256dh),
        auth_secret=_decoded(subscription.auth),
        version="aes128gcm",
    )


def _key_of(endpoint: str) -> str:
    return hashlib.sha256(endpoint.encode("utf-8", "replace")).hexdigest()


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
