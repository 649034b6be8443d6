"""Logins: a cookie in place of a key, for browsers. It is worth what its key is worth, and only in its own page."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.server.conftest import Serve
from tests.server.readers import by_user
from tests.server.test_auth import ALL, holder, operator
from tests.serving import PATIENCE, Client, Puppet, error_of, quick_settings, serving
from turnwire import Turnwire
from turnwire.core.log.codec import now_ms


class Browser(Client):
    """A client that is known by its cookie, on the server's own page if nothing else is said."""

    def __init__(self, url: str, origin: str | None = None) -> None:
        super().__init__(url, {"Origin": origin or url})

    async def login(self, key: str) -> httpx.Response:
        return await self.http.post("/login", json={"key": key})

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())


@asynccontextmanager
async def browser(server: Client) -> AsyncIterator[Browser]:
    client = Browser(server.url)
    try:
        yield client
    finally:
        await client.http.aclose()


async def test_login_cookie_has_the_rights_of_the_key(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, holder(server) as anna, browser(server) as page:
        me = (await page.http.get("/v1/me")).json()
        assert (me["principal"], me["login_required"], me["logged_in"]) == (None, True, False)
        answer = await page.login(anna.key)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        cookie = answer.headers["set-cookie"]
        assert anna.key not in cookie
        assert anna.key.removeprefix("tw_").partition("_")[2] not in cookie
        name, *rules = cookie.split("; ")
        assert name.startswith(f"turnwire_{server.port}=")
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} < set(rules)
        me = (await page.http.get("/v1/me")).json()
        assert me == answer.json()
        assert (me["principal"], me["scopes"], me["login_required"]) == ("anna", list(ALL), False)
        assert me["logged_in"] is True
        # Reading, starting, streaming, stopping, and a socket.
        async with page.ask(session_id="s") as stream:
            part = await puppet.part()
            assert part.turn.principal == "anna"
            async with page.events(stream.turn_id) as other:
                await other.until("message")
            assert (await page.http.post(f"/v1/turns/{stream.turn_id}/cancel")).json()["outcome"] == "cancelled"
        headers = {"Cookie": page.cookie}
        async with connect(f"ws://127.0.0.1:{server.port}/v1/ws", origin=server.url, additional_headers=headers) as ws:  # type: ignore[arg-type]
            await ws.send('{"type": "ping", "id": 1}')
            async with asyncio.timeout(PATIENCE):
                assert '"pong"' in str(await ws.recv())
        assert (await page.http.get("/v1/sessions", headers={"Origin": ""})).status_code == 200
        # And out again.
        answer = await page.http.post("/logout")
        assert answer.status_code == 204
        assert "Max-Age=0" in answer.headers["set-cookie"]
        error_of(await page.http.get("/v1/sessions"), 401)


async def test_another_page_cannot_use_the_cookie(serve: Serve, puppet: Puppet) -> None:
    """Cross-site request forgery, which SameSite alone does not stop: another port is the same site."""
    async with (
        serve(allowed_origins=["https://page.example"]) as server,
        holder(server) as anna,
        browser(server) as page,
    ):
        await page.login(anna.key)
        strangers = [
            {"Origin": "https://evil.example"},
            {"Origin": f"http://127.0.0.1:{server.port + 1}"},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": "", "Sec-Fetch-Site": "same-site"},
            {"Origin": "", "Sec-Fetch-Site": "none"},
            # With an origin, it is the origin that counts.
            {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
        ]
        for headers in strangers:
            for method, path in (
                ("POST", "/chat/stream"),
                ("POST", "/v1/sessions"),
                ("POST", "/v1/documents"),
                ("PATCH", "/v1/sessions/s"),
                ("DELETE", "/v1/sessions/s"),
                ("POST", "/v1/turns/t/cancel"),
                ("POST", "/v1/turns/t/approvals/c"),
                ("POST", "/v1/responses"),
            ):
                answer = await page.http.request(method, path, json={"message": "Hello"}, headers=headers)
                assert error_of(answer, 403)["code"] == "origin_not_allowed"
                assert "access-control-allow-origin" not in answer.headers
        for origin in ("https://evil.example", "null", None):
            with pytest.raises(InvalidStatus) as refused:
                await connect(
                    f"ws://127.0.0.1:{server.port}/v1/ws",
                    origin=origin,  # type: ignore[arg-type]
                    additional_headers={"Cookie": page.cookie},
                ).__aenter__()
            assert refused.value.response.status_code == 403
        assert await server.written("anna") == (0, 0)
        # No answer ever says that a page elsewhere may read what the cookie opens.
        for origin in ("https://evil.example", "https://page.example"):
            answer = await page.http.get("/v1/sessions", headers={"Origin": origin})
            assert "access-control-allow-credentials" not in answer.headers
        for headers in ({"Origin": "", "Sec-Fetch-Site": "same-origin"}, {"Origin": "https://page.example"}):
            assert (await page.http.post("/v1/sessions", json={}, headers=headers)).status_code == 201


async def test_another_page_cannot_log_anybody_in_or_out(serve: Serve) -> None:
    async with serve() as server, holder(server) as anna, browser(server) as page:
        for origin in ("https://evil.example", "null", f"http://localhost:{server.port}"):
            for path, body in (("/login", {"key": anna.key}), ("/logout", None)):
                answer = await page.http.post(path, json=body, headers={"Origin": origin})
                assert error_of(answer, 403)["code"] == "origin_not_allowed"
                assert "set-cookie" not in answer.headers
        # Nor by a form, which needs no permission to be sent.
        answer = await page.http.post(
            "/login", content=f'{{"key": "{anna.key}"}}', headers={"Content-Type": "text/plain"}
        )
        assert "set-cookie" not in answer.headers
        error_of(answer, 415)


async def test_a_wrong_key_is_refused_and_never_repeated(serve: Serve) -> None:
    async with serve() as server, holder(server) as anna, browser(server) as page:
        await server.turnwire.keys.revoke((await server.turnwire.keys.create("bob", ALL))[0].id)
        for key in (anna.key[:-1], anna.key + "x", "tw_x_y", "x", anna.key_id, "tw_" + anna.key_id):
            answer = await page.login(key)
            error_of(answer, 401)
            assert "set-cookie" not in answer.headers
        for body in ({}, {"key": ""}, {"key": 5}, {"key": "x" * 501}):
            answer = await page.http.post("/login", json=body)
            assert error_of(answer, 422)["code"] == "invalid_request"
            assert "xxx" not in answer.text


async def test_a_cookie_cannot_be_made_or_changed(serve: Serve) -> None:
    async with serve() as server, holder(server) as anna, holder(server, "bob") as bob, browser(server) as page:
        await page.login(anna.key)
        name, _, value = page.cookie.partition("=")
        key_id, until, signature = value.split(".")
        assert key_id == anna.key_id
        for forged in (
            f"{bob.key_id}.{until}.{signature}",
            f"{key_id}.{int(until) + 1}.{signature}",
            f"{key_id}.{until}.{signature[:-1]}",
            f"{key_id}.{until}.",
            f"{key_id}.{until}",
            f"{key_id}..{signature}",
            f".{until}.{signature}",
            anna.key,
            "",
            "...",
            "\u00ff.\u00ff.\u00ff",
        ):
            cookie = f"{name}={forged}".encode("latin-1")
            async with Client(server.url).http as stranger:
                error_of(await stranger.get("/v1/sessions", headers={b"Cookie": cookie}), 401)
        # It is found among others, and where somebody else has left one of its name.
        async with Client(server.url).http as same:
            cookie = f"theme=dark; {name}=x; {name}={value}; a=b"
            assert (await same.get("/v1/sessions", headers={"Cookie": cookie})).status_code == 200
        # A key that is presented counts, and no cookie helps a wrong one.
        answer = await page.http.get("/v1/me", headers={"X-API-Key": bob.key})
        assert (answer.json()["principal"], answer.json()["logged_in"]) == ("bob", False)
        error_of(await page.http.get("/v1/sessions", headers={"X-API-Key": "tw_x_y"}), 401)


async def test_a_login_ends_with_its_key(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, holder(server) as anna, operator(server) as boss, browser(server) as page:
        await page.login(anna.key)
        async with page.ask() as stream:
            await puppet.part()
            await stream.until("message")
            assert (await boss.delete(f"/v1/keys/{anna.key_id}")).status_code == 200
            with pytest.raises(httpx.TransportError):
                await stream.rest()
        error_of(await page.http.get("/v1/sessions"), 401)
        assert (await page.http.get("/v1/me")).json()["login_required"] is True


async def test_a_login_ends_in_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwire.server.auth.LOGIN_SECONDS", 0.2)
    async with serve() as server, holder(server) as anna, browser(server) as page:
        # A browser drops the cookie by itself; a thief would not.
        cookie = {"Cookie": (await page.login(anna.key)).headers["set-cookie"].partition(";")[0]}
        async with Client(server.url).http as thief, asyncio.timeout(PATIENCE):
            while (await thief.get("/v1/sessions", headers=cookie)).status_code != 401:
                pass


async def test_a_login_does_not_outlast_its_key(serve: Serve) -> None:
    async with serve() as server, holder(server, expires_at=now_ms() + 60_000) as anna, browser(server) as page:
        answer = await page.login(anna.key)
        (age,) = (part for part in answer.headers["set-cookie"].split("; ") if part.startswith("Max-Age="))
        assert 0 < int(age.partition("=")[2]) <= 60


async def test_a_login_holds_over_a_restart_and_in_every_worker(puppet: Puppet, tmp_path) -> None:
    settings = quick_settings(tmp_path)
    async with serving(Turnwire(puppet, settings=settings)) as server, holder(server) as anna, browser(server) as page:
        await page.login(anna.key)
        value = page.cookie.partition("=")[2]
    async with serving(Turnwire(puppet, settings=settings)) as server, Client(server.url).http as again:
        cookie = {"Cookie": f"turnwire_{server.port}={value}"}
        assert (await again.get("/v1/me", headers=cookie)).json()["principal"] == "anna"


@pytest.mark.parametrize(("secret", "principal"), [("a" * 32, "anna"), ("b" * 32, None)])
async def test_a_login_holds_in_every_server_with_the_same_secret(
    puppet: Puppet, tmp_path: Path, secret: str, principal: str | None
) -> None:
    first, second = (quick_settings(tmp_path, login_secret=each) for each in ("a" * 32, secret))
    async with serving(Turnwire(puppet, settings=first)) as server, holder(server) as anna, browser(server) as page:
        await page.login(anna.key)
        value = page.cookie.partition("=")[2]
    async with serving(Turnwire(puppet, settings=second)) as server, Client(server.url).http as again:
        cookie = {"Cookie": f"turnwire_{server.port}={value}"}
        assert (await again.get("/v1/me", headers=cookie)).json()["principal"] == principal


async def test_by_cookie_too_anothers_sessions_and_missing_scopes_stay_closed(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, holder(server) as anna, holder(server, "bob", ("read",)) as bob:
        turn_id = await anna.start(session_id="diary")
        await puppet.part()
        async with browser(server) as page:
            await page.login(bob.key)
            for path in (f"/v1/turns/{turn_id}", f"/v1/turns/{turn_id}/events", f"/v1/turns/{turn_id}/log.jsonl"):
                assert error_of(await page.http.get(path), 404)["code"] == "turn_not_found"
            error_of(await page.http.get("/v1/sessions/diary"), 404)
            assert error_of(await page.http.post("/v1/sessions", json={}), 403)["code"] == "forbidden"
            error_of(await page.http.get("/v1/keys"), 403)


async def test_over_tls_the_cookie_never_travels_without_it(serve: Serve) -> None:
    async with serve() as server, holder(server) as anna:
        # As a proxy on this machine says it, which uvicorn believes.
        answer = await server.http.post(
            "/login", json={"key": anna.key}, headers={"X-Forwarded-Proto": "https", "Host": "agent.example"}
        )
        assert answer.headers["set-cookie"].startswith("turnwire=")
        assert answer.headers["set-cookie"].endswith("; Secure")


async def test_login_without_api_keys_is_404(serve: Serve) -> None:
    async with serve() as server:
        assert error_of(await server.http.post("/login", json={"key": "tw_x_y"}), 404)["code"] == "no_login"
        me = (await server.http.get("/v1/me")).json()
        assert (me["principal"], me["login_required"], me["logged_in"]) == ("local", False, False)
    async with serve(authenticate=by_user) as server:
        _, text = await server.turnwire.keys.create("anna", ALL)
        assert error_of(await server.http.post("/login", json={"key": text}), 404)["code"] == "no_login"
        me = (await server.http.get("/v1/me")).json()
        assert (me["principal"], me["login_required"]) == (None, False)
        assert (await server.http.get("/v1/me", headers={"X-User": "anna"})).json()["principal"] == "anna"


@pytest.mark.one_store("its second server begins with an empty store")
async def test_me_reports_documents_and_upload_suffixes(serve_documents: Serve, serve: Serve) -> None:
    async with serve_documents() as server:
        me = (await server.http.get("/v1/me")).json()
        assert me["documents"] is True
        assert ".md" in me["upload_suffixes"]
        agents = (await server.http.get("/v1/agents")).json()
        assert agents["takes_documents"] is True
        assert [(agent["name"], agent["is_default"], agent["takes_attachments"]) for agent in agents["agents"]] == [
            ("documents", True, False)
        ]
        await server.turnwire.keys.create("anna", ALL)
        me = (await server.http.get("/v1/me")).json()
        assert (me["documents"], me["upload_suffixes"], me["scopes"]) == (False, [], [])
    async with serve() as server:
        assert (await server.http.get("/v1/me")).json()["documents"] is False
        assert (await server.http.get("/v1/agents")).json()["takes_documents"] is False
