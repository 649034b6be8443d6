"""The web pages: complete, small, cached, and limited to this origin by their policy."""

import gzip
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.node_packages import node_with
from tests.server.conftest import Serve
from tests.serving import PATIENCE, Client, Puppet, Served, error_of, quick_settings, serving
from turnwire import Turnwire
from turnwire.server.pages import FOLDER, POLICY

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "clients" / "web"
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MAX_BYTES = {"/": 60_000, "/docs": 60_000, "/turns": 60_000, "/turns/some": 60_000, "/share/some": 60_000}
"""The limit of what a page loads at first."""
MAX_LAZY_BYTES = 64_000
"""The limit of each file that is loaded when an answer needs it: the renderer, highlighting, maths."""
PAGES = tuple(MAX_BYTES)


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[Served]:
    async with serve() as served:
        yield served


def addresses(page: httpx.Response) -> list[str]:
    """Return the addresses that the page's HTML loads."""
    return re.findall(r'(?:src|href)="([^"]+)"', page.text)


def imports(script: httpx.Response, *, lazy: bool) -> list[str]:
    """Return the addresses that a script imports at once, and with `lazy` those that it imports when needed."""
    imports = re.findall(r'(?:from|import)\s*"(\./[^"]+)"', script.text)
    imports += re.findall(r'import\("(\./[^"]+)"\)', script.text) if lazy else []
    return [httpx.URL(str(script.url)).join(name).raw_path.decode() for name in imports]


async def loaded(client: httpx.AsyncClient, page: str, *, lazy: bool = True) -> dict[str, httpx.Response]:
    """Return a page and everything that it loads, as a browser with gzip gets it."""
    first = await client.get(page, headers=HTML)
    answers, wanted = {page: first}, addresses(first)
    while wanted:
        address = wanted.pop()
        if address not in answers:
            answers[address] = await client.get(address)
            wanted += imports(answers[address], lazy=lazy) if ".js" in address else []
    return answers


async def test_root_is_the_page_for_browsers_and_plain_text_for_others(server: Served) -> None:
    page = await server.http.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" in page.text
    for accept in ("*/*", "text/plain", "application/json"):
        words = await server.http.get("/", headers={"Accept": accept})
        assert words.headers["content-type"] == "text/plain; charset=utf-8"
        assert "curl" in words.text
        assert "content-security-policy" not in words.headers
    inspector = await server.http.get("/turns/01890000-0000-7000-8000-000000000000", headers=HTML)
    assert (inspector.status_code, inspector.headers["content-type"]) == (200, page.headers["content-type"])
    assert inspector.text != page.text


@pytest.mark.parametrize("path", PAGES)
async def test_every_file_of_a_page_is_served_with_policy_and_caching(server: Served, path: str) -> None:
    answers = await loaded(server.http, path)
    assert len(answers) >= 3
    for address, answer in answers.items():
        assert answer.status_code == 200, address
        headers = answer.headers
        assert headers["content-security-policy"] == POLICY
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
        kind[".webmanifest"] = "application/manifest+json"
        suffix = Path(httpx.URL(address).path).suffix
        assert headers["content-type"].startswith(kind.get(suffix, "text/html"))
        # What has its hash in its address is never asked for again; the rest costs one short question.
        assert headers["cache-control"] == ("no-cache" if address == path else "public, max-age=31536000, immutable")
        again = await server.http.get(address, headers={**HTML, "If-None-Match": headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["content-security-policy"] == POLICY
        head = await server.http.head(address, headers=HTML)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["etag"] == headers["etag"]


async def test_page_size_is_limited(server: Served) -> None:
    for path in PAGES:
        answers = await loaded(server.http, path)
        sizes = {address: int(answer.headers["content-length"]) for address, answer in answers.items()}
        for answer in answers.values():
            packed = answer.headers.get("content-encoding") == "gzip"
            assert packed or len(gzip.compress(answer.content)) >= len(answer.content)
        weight = sum(sizes[address] for address in await loaded(server.http, path, lazy=False))
        assert weight <= MAX_BYTES[path], f"{path} weighs {weight:,} bytes"
        assert max(sizes.values()) <= MAX_LAZY_BYTES, sizes
    needed = {Path(address).name.partition("-")[0] for address in await loaded(server.http, "/")}
    assert {"renderer", "highlight", "maths"} <= needed
    plain = await server.http.get("/", headers={**HTML, "Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == (await server.http.get("/", headers=HTML)).text


async def test_page_has_no_inline_code_and_no_other_origin(server: Served) -> None:
    for path in PAGES:
        page = await server.http.get(path, headers=HTML)
        assert [address for address in addresses(page) if not address.startswith("/assets/")] == []
        assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", page.text) == []


@pytest.mark.parametrize(
    "path", ["/assets/nothing.js", "/assets/", "/assets/../pages.py", "/assets/%2e%2e/index.html", "/assets/a/b.js"]
)
async def test_unknown_asset_is_not_found(server: Served, path: str) -> None:
    error_of(await server.http.get(path, headers=HTML), 404)


async def test_only_the_widget_may_be_loaded_by_pages_of_other_origins(server: Served) -> None:
    widget = await server.http.get("/widget.js")
    assert (widget.status_code, widget.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert widget.headers["cross-origin-resource-policy"] == "cross-origin"
    assert widget.headers["cache-control"] == "no-cache"
    assert int(widget.headers["content-length"]) <= MAX_BYTES["/"]
    assert (await server.http.get("/assets/app.js")).headers["cross-origin-resource-policy"] == "same-origin"


async def test_asset_with_another_version_is_not_cached(server: Served) -> None:
    address = next(path for path in addresses(await server.http.get("/", headers=HTML)) if ".css" in path)
    stale = await server.http.get(address[:-1] + ("0" if address[-1] != "0" else "1"))
    assert (stale.status_code, stale.headers["cache-control"]) == (200, "no-cache")


async def test_page_is_public_and_its_data_is_not(serve: Serve) -> None:
    async with serve() as server:
        await server.turnwire.keys.create("anna", ("read",))
        for path in PAGES:
            assert {answer.status_code for answer in (await loaded(server.http, path)).values()} == {200}
        error_of(await server.http.get("/v1/turns/some"), 401)
        error_of(await server.http.get("/v1/turns/some/log.jsonl"), 401)
        error_of(await server.http.post("/"), 405)
        error_of(await server.http.post("/turns/some"), 401)


async def test_page_of_a_foreign_host_name_is_refused(server: Served) -> None:
    for path in (*PAGES, "/assets/app.css"):
        answer = await server.http.get(path, headers={**HTML, "Host": "evil.example"})
        assert error_of(answer, 421)["code"] == "host_not_allowed"


async def test_a_mounted_page_finds_its_parts(puppet: Puppet, tmp_path: Path) -> None:
    turnwire = Turnwire(puppet, store="memory", settings=quick_settings(tmp_path))
    host = FastAPI(lifespan=turnwire.lifespan)
    host.mount("/my agent", turnwire.asgi())
    async with serving(turnwire, host) as served, Client(served.url).http as browser:
        for path in ("/my%20agent/", "/my%20agent/docs", "/my%20agent/turns/some", "/my%20agent/share/some"):
            answers = await loaded(browser, path)
            assert all(address.startswith("/my%20agent/") for address in answers)
            assert {answer.status_code for answer in answers.values()} == {200}


async def test_openapi_document_has_every_schema_that_it_refers_to(server: Served) -> None:
    document = (await server.http.get("/openapi.json")).json()
    references = set(re.findall(r"'\$ref': '([^']+)'", str(document)))
    components = document["components"]
    assert {"ChatBody", "MessageBody", "RagMessageBody", "ResponseBody", "RunInput"} <= set(components["schemas"])
    assert references <= {f"#/components/{kind}/{name}" for kind, named in components.items() for name in named}


@pytest.mark.node
def test_build_of_the_sources_equals_the_committed_page(tmp_path: Path) -> None:
    node = node_with(SOURCES)
    built = subprocess.run(
        [node, "build.mjs", "--out", str(tmp_path / "page")],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert built.returncode == 0, built.stderr

    def files(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    committed, made = files(FOLDER), files(tmp_path / "page")
    assert sorted(committed) == sorted(made)
    different = [name for name in made if made[name] != committed[name]]
    assert different == [], "build the page again: npm ci && npm run build in clients/web"


@pytest.mark.node
def test_javascript_tests_of_the_page_pass() -> None:
    node = node_with(SOURCES)
    done = subprocess.run([node, "test/run.mjs"], cwd=SOURCES, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout
