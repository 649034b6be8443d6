"""Tests that the documentation is served at `/guide/`, to everybody, under the policy of the pages."""

from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.server.conftest import Serve
from tests.serving import Puppet, error_of, quick_settings, serving
from turnwire import Turnwire
from turnwire.server import guide
from turnwire.server.guide import site
from turnwire.server.pages import POLICY


async def test_guide_is_served_with_policy_and_caching(serve: Serve) -> None:
    async with serve() as server:
        first = await server.http.get("/guide", follow_redirects=True)
        assert (first.status_code, first.url.path) == (200, "/guide/")
        assert first.headers["content-security-policy"] == POLICY
        assert first.headers["content-encoding"] == "gzip"
        for name, kind in (
            ("guides/page.html", "text/html; charset=utf-8"),
            ("guide.css", "text/css; charset=utf-8"),
            ("guide.js", "text/javascript; charset=utf-8"),
            ("search.json", "application/json"),
            ("pictures/architecture.svg", "image/svg+xml"),
        ):
            answer = await server.http.get(f"/guide/{name}")
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
            tag = {"If-None-Match": answer.headers["etag"]}
            assert (await server.http.get(f"/guide/{name}", headers=tag)).status_code == 304
        head = await server.http.head("/guide/concepts.html")
        assert (head.status_code, head.content) == (200, b"")


async def test_unknown_page_is_a_404_that_leads_to_the_top(serve: Serve) -> None:
    async with serve() as server:
        for name in ("nothing.html", "guides/nothing.html", "%2e%2e/pyproject.toml", "examples/echo.py", "guides"):
            answer = await server.http.get(f"/guide/{name}")
            assert answer.status_code == 404, name
            assert "There is no such page" in answer.text
            assert answer.headers["content-security-policy"] == POLICY
        missing = (await server.http.get("/guide/guides/nothing.html")).text
        assert '<a href="../">' in missing
        assert '<link rel="stylesheet" href="../guide.css">' in missing
        error_of(await server.http.post("/guide/"), 405)


async def test_guide_needs_no_key(serve: Serve) -> None:
    async with serve() as server:
        await server.turnwire.keys.create("ada", ("read",))
        assert (await server.http.get("/v1/sessions")).status_code == 401
        assert (await server.http.get("/guide/")).status_code == 200


async def test_mounted_guide_redirects_below_its_mount(tmp_path: Path, puppet: Puppet) -> None:
    turnwire = Turnwire(puppet, store="memory", settings=quick_settings(tmp_path))
    outer = FastAPI(lifespan=turnwire.lifespan)
    outer.mount("/agent", turnwire.asgi())
    async with serving(turnwire, outer, path="/agent") as server:
        answer = await server.http.get("guide")
        assert answer.headers["location"] == "/agent/guide/"
        assert (await server.http.get("guide/")).status_code == 200


async def test_installation_without_documentation_says_so(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guide, "__file__", "/nowhere/a/b/c/d/__init__.py")
    site.own_guide.cache_clear()
    try:
        async with serve() as server:
            answer = await server.http.get("/guide/")
    finally:
        site.own_guide.cache_clear()
    assert answer.status_code == 404
    assert "not installed" in answer.text
    assert site.SOURCE in answer.text
