"""Push notifications, sent over HTTP to a scripted push service and decrypted as a browser does it."""

import asyncio
import base64
import hashlib
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import turnwire.server as server_package
from tests.reporting.http_receiver import ReceivedRequest, Receiver, run_receiver
from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.serving import PATIENCE, Client, Puppet, Served, error_of, quick_settings, until
from turnwire import Turnwire, ask
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.core.log.turns import Turn
from turnwire.server import push

CONTACT = "mailto:operator@example.org"


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class PushService:
    """A push service with one browser."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._auth = bytes(range(16))

    @property
    def subscription(self) -> dict[str, Any]:
        point = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        keys = {"p256dh": encoded(point), "auth": encoded(self._auth)}
        return {"endpoint": f"{self.receiver.url}/browser", "expirationTime": None, "keys": keys}

    async def message(self, number: int = 1) -> ReceivedRequest:
        """Return a message when it has arrived; the first is number 1."""
        return (await self.receiver.count(number))[number - 1]

    def decrypt(self, body: bytes) -> dict[str, Any]:
        """Decrypt a message as RFC 8291 and 8188 say."""
        salt, length = body[:16], body[20]
        point, sealed = body[21 : 21 + length], body[21 + length :]
        own = self._key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        secret = self._key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point))
        info = b"WebPush: info\x00" + own + point
        ikm = HKDF(SHA256(), 32, self._auth, info).derive(secret)
        key = HKDF(SHA256(), 16, salt, b"Content-Encoding: aes128gcm\x00").derive(ikm)
        nonce = HKDF(SHA256(), 12, salt, b"Content-Encoding: nonce\x00").derive(ikm)
        plain = AESGCM(key).decrypt(nonce, sealed, None).rstrip(b"\x00")
        assert plain[-1:] == b"\x02"
        return json.loads(plain[:-1])


def check_signature(authorization: str, public_key: str, audience: str) -> None:
    """Check a VAPID header as RFC 8292 says. Raises InvalidSignature."""
    parts = dict(part.strip().split("=", 1) for part in authorization.removeprefix("vapid ").split(","))
    assert parts["k"].rstrip("=") == public_key
    head, claims, signature = parts["t"].split(".")
    r, s = (int.from_bytes(half, "big") for half in (decoded(signature)[:32], decoded(signature)[32:]))
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(public_key))
    key.verify(encode_dss_signature(r, s), f"{head}.{claims}".encode(), ec.ECDSA(SHA256()))
    content = json.loads(decoded(claims))
    assert (content["sub"], content["aud"]) == (CONTACT, audience)


@asynccontextmanager
async def push_service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PushService]:
    monkeypatch.setattr(push, "LOCAL_NETWORKS", [ip_network("127.0.0.0/8")])
    async with run_receiver() as receiver:
        yield PushService(receiver)


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PushService]:
    async with push_service(monkeypatch) as service:
        yield service


@asynccontextmanager
async def subscribed(server: Served, service: PushService, name: str = "anna") -> AsyncIterator[Client]:
    async with user(server, name) as client:
        response = await client.http.post("/v1/push/subscriptions", json=service.subscription)
        assert response.status_code == 201, response.text
        yield client


async def start(client: Client, message: str) -> str:
    """Start a turn that nobody reads, and return its id."""
    session = (await client.http.post("/v1/sessions", json={})).json()["id"]
    return (await client.http.post(f"/v1/sessions/{session}/turns", json={"message": message})).json()["turn_id"]


async def test_ended_turn_that_was_left_is_pushed(
    serve: Serve, kind: StoreKind, puppet: Puppet, service: PushService
) -> None:
    async with (
        serve(store=kind, authenticate=by_user, push_contact=CONTACT, brand_name="Acme") as server,
        subscribed(server, service) as anna,
    ):
        turn_id = await start(anna, "  What is\ntea? " + "x" * 200)
        (await puppet.part()).end()
        message = await service.message()
        public_key = (await anna.http.get("/v1/push")).json()["public_key"]
    assert message.path == "/browser"
    assert message.headers["content-encoding"] == "aes128gcm"
    assert int(message.headers["ttl"]) > 0
    check_signature(message.headers["authorization"], public_key, service.receiver.url)
    shown = service.decrypt(message.body)
    assert (shown["title"], shown["kind"], shown["outcome"]) == ("Acme", "ended", "completed")
    assert shown["message"].startswith("What is tea? xxx")
    assert len(shown["message"]) == 120
    assert shown["turn_id"] == turn_id


async def ask_first(turn: Turn) -> AsyncIterator[str]:
    await approval(ApprovalRequestEvent("c1", "pay", {}))
    yield "Paid."


async def test_turn_that_asks_is_pushed_and_pushed_again_when_it_ends(serve: Serve, service: PushService) -> None:
    async with (
        serve(ask_first, authenticate=by_user, push_contact=CONTACT) as server,
        subscribed(server, service) as anna,
    ):
        turn_id = await start(anna, "Pay")
        asks = await service.message()
        assert service.decrypt(asks.body)["kind"] == "asks"
        assert asks.headers["urgency"] == "high"
        await anna.http.post(f"/v1/turns/{turn_id}/approvals/c1", json={"approved": True})
        ended = await service.message(2)
        assert service.decrypt(ended.body)["kind"] == "ended"
        # The second message replaces the first one while the browser is away.
        assert asks.headers["topic"] == ended.headers["topic"]


async def ask_plan(turn: Turn) -> AsyncIterator[str]:
    yield str(await ask("Which plan?"))


async def test_turn_that_waits_for_an_answer_is_pushed(serve: Serve, service: PushService) -> None:
    async with (
        serve(ask_plan, authenticate=by_user, push_contact=CONTACT) as server,
        subscribed(server, service) as anna,
    ):
        await start(anna, "Plan")
        assert service.decrypt((await service.message()).body)["kind"] == "asks"


async def test_turn_whose_session_is_read_and_turns_of_others_are_not_pushed(
    serve: Serve, puppet: Puppet, service: PushService
) -> None:
    async with (
        serve(authenticate=by_user, push_contact=CONTACT) as server,
        user(server, "bob") as bob,
        subscribed(server, service) as anna,
    ):
        await anna.http.post("/v1/sessions", json={"id": "watched"})
        async with anna.stream("GET", "/v1/sessions/watched/events") as stream:
            await anna.http.post("/v1/sessions/watched/turns", json={"message": "Watched"})
            (await puppet.part()).end()
            await stream.until("done")
            await start(bob, "Bob's")
            (await puppet.part()).end()
        await until(lambda: not server.turnwire.streams.opened_by("anna"))
        await start(anna, "Left")
        (await puppet.part()).end()
        assert service.decrypt((await service.message()).body)["message"] == "Left"
        assert len(service.receiver.received) == 1


@pytest.mark.parametrize("status", [403, 404, 410])
async def test_subscription_that_is_gone_is_removed(
    serve: Serve, puppet: Puppet, service: PushService, status: int
) -> None:
    service.receiver.statuses = [status]
    async with serve(authenticate=by_user, push_contact=CONTACT) as server, subscribed(server, service) as anna:
        await start(anna, "Hello")
        (await puppet.part()).end()
        await service.message()
        async with asyncio.timeout(PATIENCE):
            while await server.turnwire.store.list_annotations("push_subscription", None):  # noqa: ASYNC110 - no signal
                await asyncio.sleep(0.01)


async def test_service_that_fails_keeps_the_subscription(serve: Serve, puppet: Puppet, service: PushService) -> None:
    service.receiver.statuses = [500]
    async with serve(authenticate=by_user, push_contact=CONTACT) as server, subscribed(server, service) as anna:
        for number in (1, 2):
            await start(anna, "Hello")
            (await puppet.part()).end()
            await service.message(number)


async def test_unsubscribed_browser_gets_nothing(serve: Serve, puppet: Puppet, service: PushService) -> None:
    endpoint = {"endpoint": service.subscription["endpoint"]}
    async with serve(authenticate=by_user, push_contact=CONTACT) as server, subscribed(server, service) as anna:
        async with user(server, "bob") as bob:
            assert (await bob.http.request("DELETE", "/v1/push/subscriptions", json=endpoint)).status_code == 204
        store = server.turnwire.store
        assert len(await store.list_annotations("push_subscription", "anna")) == 1
        assert (await anna.http.request("DELETE", "/v1/push/subscriptions", json=endpoint)).status_code == 204
        assert await store.list_annotations("push_subscription", None) == []


async def test_only_the_newest_subscriptions_of_a_user_are_kept(
    serve: Serve, service: PushService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "now_ms", itertools.count(1).__next__)
    async with serve(authenticate=by_user, push_contact=CONTACT) as server, user(server, "anna") as anna:
        for number in range(23):
            body = {**service.subscription, "endpoint": f"{service.receiver.url}/{number}"}
            assert (await anna.http.post("/v1/push/subscriptions", json=body)).status_code == 201
        found = await server.turnwire.store.list_annotations("push_subscription", "anna")
        kept = {json.loads(item.value)["endpoint"].rpartition("/")[2] for item in found}
        assert kept == {str(number) for number in range(3, 23)}


async def test_browser_belongs_to_its_last_user(serve: Serve, service: PushService) -> None:
    async with serve(authenticate=by_user, push_contact=CONTACT) as server:
        for name in ("anna", "bob"):
            async with subscribed(server, service, name):
                pass
        (stored,) = await server.turnwire.store.list_annotations("push_subscription", None)
        assert (stored.principal, stored.key) == (
            "bob",
            hashlib.sha256(service.subscription["endpoint"].encode()).hexdigest(),
        )


async def test_server_keeps_its_key(serve: Serve) -> None:
    keys: set[str] = set()
    for _ in range(2):
        async with serve(store="sqlite", push_contact=CONTACT) as server:
            keys |= {(await server.http.get("/v1/push")).json()["public_key"] for _ in range(2)}
    assert len(keys) == 1


async def test_server_without_a_contact_has_no_push(serve: Serve, service: PushService) -> None:
    async with serve() as server:
        assert error_of(await server.http.get("/v1/push"), 404)["code"] == "no_push"
        response = await server.http.post("/v1/push/subscriptions", json=service.subscription)
        assert error_of(response, 404)["code"] == "no_push"


@pytest.mark.parametrize(
    ("endpoint", "keys"),
    [
        ("http://push.example/x", {}),
        ("ftp://push.example/x", {}),
        ("https:///x", {}),
        ("https://push.example/\n", {}),
        ("https://[push.example/x", {}),
        ("https://push.example/x", {"p256dh": encoded(b"\x04" + b"\x00" * 64)}),
        ("https://push.example/x", {"auth": "AAAA"}),
        ("https://push.example/x", {"auth": "not base64!"}),
    ],
)
async def test_subscription_that_cannot_work_is_refused(
    serve: Serve, service: PushService, monkeypatch: pytest.MonkeyPatch, endpoint: str, keys: dict[str, str]
) -> None:
    monkeypatch.setattr(push, "LOCAL_NETWORKS", [])
    valid = service.subscription
    async with serve(push_contact=CONTACT) as server:
        body = {"endpoint": endpoint, "keys": {**valid["keys"], **keys}}
        assert error_of(await server.http.post("/v1/push/subscriptions", json=body), 422)
        assert await server.turnwire.store.list_annotations("push_subscription", None) == []


async def test_endpoint_inside_the_network_is_never_called(
    serve: Serve, puppet: Puppet, service: PushService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(authenticate=by_user, push_contact=CONTACT) as server, subscribed(server, service) as anna:
        monkeypatch.setattr(push, "LOCAL_NETWORKS", [])
        failures = push.PUSHES.values["failed"]
        await start(anna, "Hello")
        (await puppet.part()).end()
        await until(lambda: push.PUSHES.values["failed"] > failures)
        assert service.receiver.received == []


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, puppet: Puppet) -> None:
    monkeypatch.delitem(sys.modules, "turnwire.server.push")
    monkeypatch.delattr(server_package, "push")
    monkeypatch.setitem(sys.modules, "http_ece", None)
    with pytest.raises(ValueError, match=r"turnwire\[push\]"):
        Turnwire(puppet, store="memory", settings=quick_settings(tmp_path, push_contact=CONTACT))
