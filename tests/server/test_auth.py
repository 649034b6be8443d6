"""Authentication: loopback without keys, API keys, and the hook of a host application."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import Client, Puppet, Served, error_of, within
from tests.simulated_time import SimulatedTimeLoop
from turnwire.core.contracts.stores import Scope
from turnwire.core.log.codec import now_ms
from turnwire.server.auth import KeyRing
from turnwire.server.router import Route
from turnwire.stores.memory import MemoryStore

PUBLIC = ("/", "/healthz", "/readyz", "/docs", "/openapi.json", "/v1/me")
ALL: tuple[Scope, ...] = ("read", "write", "approve")
EVERY: tuple[Scope, ...] = (*ALL, "operate")


class Holder(Client):
    """A client that has a key."""

    def __init__(self, url: str, key_id: str, key: str) -> None:
        super().__init__(url, {"Authorization": f"Bearer {key}"})
        self.key_id = key_id
        self.key = key


@asynccontextmanager
async def holder(
    server: Served, principal: str = "anna", scopes: tuple[Scope, ...] = ALL, expires_at: int | None = None
) -> AsyncIterator[Holder]:
    key, text = await server.turnwire.keys.create(principal, scopes, expires_at)
    client = Holder(server.url, key.id, text)
    try:
        yield client
    finally:
        await client.http.aclose()


@asynccontextmanager
async def operator(server: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client of who can read the data folder."""
    client = Client(server.url, {"Authorization": f"Bearer {server.turnwire.control_token}"})
    try:
        yield client.http
    finally:
        await client.http.aclose()


# Without keys


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:8420", "[::1]", "[::1]:8420"])
async def test_without_keys_this_machine_may_call(serve: Serve, host: str) -> None:
    async with serve() as server:
        assert (await server.http.get("/v1/sessions", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""]
)
async def test_without_keys_another_host_name_is_misdirected(serve: Serve, host: str) -> None:
    """A web page that has its own name point to this machine gets nowhere."""
    async with serve() as server:
        for path in ("/v1/sessions", *PUBLIC):
            error = error_of(await server.http.get(path, headers={"Host": host}), 421)
            assert error["code"] == "host_not_allowed"


async def test_without_keys_an_allowed_host_name_may_be_used(serve: Serve) -> None:
    async with serve(allowed_hosts=["Agent.home.example"]) as server:
        assert (await server.http.get("/v1/sessions", headers={"Host": "agent.home.example:80"})).status_code == 200
        error_of(await server.http.get("/v1/sessions", headers={"Host": "other.home.example"}), 421)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:9", "null", "file://", "http://127.0.0.1"]
)
async def test_without_keys_a_web_page_of_another_origin_is_refused(serve: Serve, puppet: Puppet, origin: str) -> None:
    async with serve() as server:
        for response in (
            await server.http.post("/chat/stream", json={"message": "Hello"}, headers={"Origin": origin}),
            await server.http.post("/v1/sessions", json={}, headers={"Origin": origin}),
            await server.http.get("/v1/sessions", headers={"Origin": origin}),
        ):
            assert error_of(response, 403)["code"] == "origin_not_allowed"
            assert "access-control-allow-origin" not in response.headers
        assert await server.written() == (0, 0)


async def test_without_keys_a_page_of_our_own_may_call(serve: Serve) -> None:
    async with serve() as server:
        assert (await server.http.get("/v1/sessions", headers={"Origin": server.url})).status_code == 200


async def test_without_keys_another_machine_is_refused(serve: Serve) -> None:
    async with serve() as server:
        sent: list[dict] = []

        async def send(message: dict) -> None:
            sent.append(message)

        for client, status in ((("10.0.0.5", 1), 403), (("::ffff:10.0.0.5", 1), 403), (("127.0.0.1", 1), 404)):
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/v1/turns/x",
                "headers": [(b"host", b"localhost")],
                "query_string": b"",
                "client": client,
            }
            await server.turnwire.asgi()(scope, asyncio.Event().wait, send)
            assert sent[-2]["status"] == status


# With keys


async def test_as_soon_as_there_is_a_key_every_call_needs_one(serve: Serve, kind: StoreKind) -> None:
    async with serve(store=kind) as server:
        async with holder(server) as anna:
            error = await server.http.get("/v1/sessions")
            assert error_of(error, 401)["code"] == "unauthorized"
            assert error.headers["www-authenticate"] == "Bearer"
            error_of(await server.http.post("/chat/stream", json={"message": "Hello"}), 401)
            error_of(await server.http.get("/v1/nothing/here"), 401)
            for path in PUBLIC:
                assert (await server.http.get(path)).status_code == 200
            assert (await anna.http.get("/v1/sessions")).status_code == 200
            await server.turnwire.keys.revoke(anna.key_id)
            error_of(await anna.http.get("/v1/sessions"), 401)
        # A revoked key is still a key: the door does not open again.
        error_of(await server.http.get("/v1/sessions"), 401)


async def test_a_key_is_taken_as_bearer_or_as_x_api_key(serve: Serve) -> None:
    async with serve() as server, holder(server) as anna:
        key = anna.key
        for headers in ({"Authorization": f"bearer {key}"}, {"X-API-Key": key}):
            assert (await server.http.get("/v1/sessions", headers=headers)).status_code == 200
        for headers in (
            {"Authorization": key},
            {"Authorization": f"Basic {key}"},
            {"X-API-Key": key[:-1]},
            {"X-API-Key": key + "x"},
            {"X-API-Key": key.upper()},
            {"X-API-Key": key.partition("_")[2]},
            {"X-API-Key": "tw_" + key.split("_")[1] + "_"},
            {"Cookie": f"key={key}"},
        ):
            error_of(await server.http.get("/v1/sessions", headers=headers), 401)
        error_of(await server.http.get(f"/v1/sessions?api_key={key}"), 401)


async def test_a_key_of_any_host_name_may_be_used_where_no_names_are_given(serve: Serve) -> None:
    async with serve() as server, holder(server) as anna:
        headers = {"Host": "agent.example", "Origin": "https://page.example"}
        assert (await anna.http.get("/v1/sessions", headers=headers)).status_code == 200


async def test_with_keys_a_host_name_that_is_not_on_the_list_is_misdirected(serve: Serve) -> None:
    async with serve(allowed_hosts=["agent.example"]) as server, holder(server) as anna:
        assert (await anna.http.get("/v1/sessions", headers={"Host": "agent.example"})).status_code == 200
        error_of(await anna.http.get("/v1/sessions", headers={"Host": "evil.example"}), 421)


async def test_every_route_needs_what_it_declares(serve: Serve) -> None:
    async with serve() as server, AsyncExitStack() as stack:
        keys = {
            scope: await stack.enter_async_context(
                holder(server, scopes=tuple(each for each in EVERY if each != scope))
            )
            for scope in EVERY
        }
        unscoped: set[str] = set()
        for route in server.turnwire.asgi().routes:
            if not isinstance(route, Route):
                continue
            access, path = route.access_with(server.turnwire.settings), re.sub(r"\{[^}]+\}", "x", route.path)
            without_key = (await server.http.request(route.method, path)).status_code
            assert (without_key != 401) is (access == "public"), route.path
            if access == "operator":
                assert (await keys["read"].http.request(route.method, path)).status_code == 403, route.path
            elif access == "any key":
                unscoped.add(route.path.split("/")[1])
            elif access != "public":
                statuses = {
                    scope: (await holding.http.request(route.method, path)).status_code
                    for scope, holding in keys.items()
                }
                assert {scope for scope, status in statuses.items() if status == 403} == {access}, route.path
        # JSON-RPC, where each method has its own; and routes of OpenAI's that are not supported.
        assert unscoped == {".well-known", "a2a", "mcp", "v1"}


async def test_a_key_without_a_scope_may_not_do_what_needs_it(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, holder(server) as anna, holder(server, "anna", ("read",)) as reader:
        turn_id = await anna.start(session_id="s")
        await puppet.part()
        assert error_of(await reader.http.post("/chat", json={"message": "Hello"}), 403)["code"] == "forbidden"
        assert error_of(await reader.http.post(f"/v1/turns/{turn_id}/cancel"), 403)["code"] == "forbidden"
        async with reader.events(turn_id) as stream:
            assert (await stream.next()).type == "session"
        async with holder(server, "anna", ("write",)) as writer:
            assert error_of(await writer.http.get(f"/v1/turns/{turn_id}"), 403)["code"] == "forbidden"
            assert (await writer.http.post(f"/v1/turns/{turn_id}/cancel")).status_code == 200
        assert await server.written("anna") == (1, 1)


async def test_expired_key_is_refused(serve: Serve) -> None:
    async with serve() as server:
        async with holder(server, expires_at=now_ms() - 1) as anna:
            error_of(await anna.http.get("/v1/sessions"), 401)
        async with holder(server, expires_at=now_ms() + 60_000) as anna:
            assert (await anna.http.get("/v1/sessions")).status_code == 200


async def test_revoking_a_key_breaks_its_open_streams_and_no_others(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, holder(server) as anna, holder(server) as other, operator(server) as boss:
        async with anna.ask(session_id="s") as of_turn, anna.stream("GET", "/v1/sessions/s/events") as of_session:
            part = await puppet.part()
            await of_turn.until("message")
            await of_session.until("message")
            async with other.events(of_turn.turn_id) as untouched:
                await untouched.until("message")
                assert (await boss.delete(f"/v1/keys/{anna.key_id}")).status_code == 200
                for stream in (of_turn, of_session):
                    with pytest.raises(httpx.TransportError):
                        await stream.rest()
                part.say("still there")
                part.end()
                assert (await untouched.rest())[-1].event["outcome"] == "completed"
        error_of(await anna.http.get("/v1/sessions"), 401)


async def test_a_key_that_expires_breaks_its_open_streams(
    serve: Serve, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires_at = now_ms() + 600_000
    async with serve(heartbeat=0.1) as server, holder(server, expires_at=expires_at) as anna, anna.ask() as stream:
        await stream.until("message")
        monkeypatch.setattr("turnwire.server.auth.now_ms", lambda: expires_at)
        with pytest.raises(httpx.TransportError):
            await stream.rest()


# The operator


async def test_keys_are_managed_by_the_operator_alone(serve: Serve, kind: StoreKind) -> None:
    async with serve(store=kind) as server, operator(server) as boss:
        error_of(await server.http.get("/v1/keys"), 403)
        made = await boss.post("/v1/keys", json={"principal": "anna", "scopes": ["read"]})
        assert made.status_code == 201
        assert made.json()["key"].startswith(f"tw_{made.json()['id']}_")
        anna = {"X-API-Key": made.json()["key"]}
        for call in (
            server.http.get("/v1/keys", headers=anna),
            server.http.post("/v1/keys", json={"principal": "bob"}, headers=anna),
            server.http.delete(f"/v1/keys/{made.json()['id']}", headers=anna),
        ):
            assert error_of(await call, 403)["code"] == "operator_only"
        (listed,) = (await boss.get("/v1/keys")).json()["keys"]
        assert set(listed) == {"id", "principal", "scopes", "created_at", "expires_at", "revoked_at"}
        assert (listed["principal"], listed["scopes"]) == ("anna", ["read"])
        assert (await server.http.get("/v1/sessions", headers=anna)).status_code == 200
        first, again = [await boss.delete(f"/v1/keys/{listed['id']}") for _ in range(2)]
        assert first.json()["revoked_at"] == again.json()["revoked_at"]
        error_of(await server.http.get("/v1/sessions", headers=anna), 401)
        assert error_of(await boss.delete("/v1/keys/nothing"), 404)["code"] == "key_not_found"


async def test_the_operator_may_call_where_others_need_a_key(serve: Serve) -> None:
    async with serve() as server, holder(server), operator(server) as boss:
        assert (await boss.get("/v1/sessions")).status_code == 200
        error_of(await server.http.get("/v1/keys", headers={"X-API-Key": server.turnwire.control_token + "x"}), 401)


# A host application's own check


async def test_authenticate_of_a_host_application_names_the_principal(serve: Serve, puppet: Puppet) -> None:
    def authenticate(scope: dict) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async with serve(authenticate=authenticate) as server:
        # There are no API keys here that a user could send.
        assert "API key" not in error_of(await server.http.get("/v1/sessions"), 401)["message"]
        error_of(await server.http.post("/chat/stream", json={"message": "Hello"}), 401)
        headers = {"X-User": "anna", "Host": "shop.example", "Origin": "https://shop.example"}
        async with server.ask(headers=headers) as stream:
            part = await puppet.part()
            assert part.turn.principal == "anna"
            part.end()
            await stream.rest()
        assert (await server.http.get(f"/v1/turns/{stream.turn_id}", headers=headers)).status_code == 200
        error_of(await server.http.get(f"/v1/turns/{stream.turn_id}", headers={"X-User": "bob"}), 404)
        error_of(await server.http.get("/v1/keys", headers={"X-User": "local"}), 403)
        async with operator(server) as boss:
            assert (await boss.get("/v1/keys")).status_code == 200


# Browsers


async def test_preflight_of_an_allowed_origin_is_answered(serve: Serve, puppet: Puppet) -> None:
    origin = "https://page.example"
    async with serve(allowed_origins=[origin + "/"]) as server:
        ask = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        for path in ("/chat/stream", "/v1/sessions", "/v1/turns/x/events"):
            answer = await server.http.options(path, headers=ask)
            assert answer.status_code == 204
            assert answer.headers["access-control-allow-origin"] == origin
            assert "POST" in answer.headers["access-control-allow-methods"]
            for name in ("authorization", "content-type", "idempotency-key", "last-event-id"):
                assert name in answer.headers["access-control-allow-headers"].lower()
        async with server.ask(headers={"Origin": origin}) as stream:
            (await puppet.part()).end()
            assert stream.headers["access-control-allow-origin"] == origin
            assert stream.headers["vary"] == "Origin"
            for name in ("x-turn-id", "x-session-id", "location", "retry-after"):
                assert name in stream.headers["access-control-expose-headers"].lower()
            await stream.rest()
        for path, status in (("/v1/sessions", 200), ("/v1/turns/unknown", 404), ("/v1/turns/unknown/events", 404)):
            answer = await server.http.get(path, headers={"Origin": origin})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin)


async def test_preflight_of_a_foreign_origin_is_refused(serve: Serve) -> None:
    ask = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    async with serve(allowed_origins=["https://page.example"]) as server, holder(server) as anna:
        answer = await anna.http.options("/chat/stream", headers=ask)
        assert error_of(answer, 403)["code"] == "origin_not_allowed"
        # With a key it is no browser's doing, so it is answered; but no page may read it.
        answer = await anna.http.get("/v1/sessions", headers={"Origin": "https://evil.example"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_key_of_another_process_is_known_within_two_seconds_without_notifications() -> None:
    async def seen_by_another() -> tuple[bool, bool]:
        data = MemoryStore()
        silent = MemoryStore(data)
        silent.watch = lambda key, wake: lambda: None
        here, there = KeyRing(MemoryStore(data)), KeyRing(silent)
        await there.open()
        keeping_up = asyncio.create_task(there.follow_changes())
        await asyncio.sleep(1)  # Of simulated time, as below.
        key, _ = await here.create("anna", ALL)
        await asyncio.sleep(2.1)
        created = there.valid(key.id)
        await here.revoke(key.id)
        await asyncio.sleep(2.1)
        revoked = there.valid(key.id)
        keeping_up.cancel()
        return created is not None, revoked is None

    with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
        assert runner.run(seen_by_another()) == (True, True)


async def test_keys_are_not_watched_any_more_when_their_changes_are_not_followed() -> None:
    store, steps = MemoryStore(), asyncio.Queue[str]()

    def watch(key: str, wake: Any) -> Any:
        steps.put_nowait("watch")
        return lambda: steps.put_nowait("unwatch")

    store.watch = watch
    following = asyncio.create_task(KeyRing(store).follow_changes())
    assert await within(steps.get()) == "watch"
    following.cancel()
    assert await within(steps.get()) == "unwatch"


async def test_api_key_is_nowhere_in_the_data_folder(serve: Serve, tmp_path: Path) -> None:
    async with serve(store="sqlite") as server, holder(server) as anna:
        assert (await anna.http.get("/v1/sessions")).status_code == 200
        key, digest = anna.key, hashlib.sha256(anna.key.encode()).hexdigest()
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(key.encode() in content for content in contents)
    # The folder is the one in which keys are kept.
    assert any(digest.encode() in content or bytes.fromhex(digest) in content for content in contents)


async def _async_name(scope: dict) -> str:
    return "anna"


@pytest.mark.parametrize("hook", [_async_name, lambda scope: 7, lambda scope: ["anna"], lambda scope: False])
async def test_authenticate_that_returns_no_name_lets_nobody_in(
    serve: Serve, hook: Any, errors_in_the_log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    errors_in_the_log.append("authenticate returned a")
    async with serve(authenticate=hook) as server:
        for path in ("/v1/me", "/v1/sessions", "/v1/agents", "/v1/models"):
            assert error_of(await server.http.get(path), 500)["code"] == "authenticate_failed"
        assert (
            error_of(await server.http.post("/chat", json={"message": "Hello"}), 500)["code"] == "authenticate_failed"
        )
    assert "it must be a plain function that returns a name or None" in caplog.text
