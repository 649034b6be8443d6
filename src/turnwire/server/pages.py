"""The web pages: files that are read once, and their Content-Security-Policy.

The pages are public, because they contain no data: they load it with the rights of the user. They are built from
`clients/web` and are part of the package, so that a server needs neither Node nor a network.
"""

import asyncio
import gzip
import hashlib
import html
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from turnwire.server.brand import DEFAULT_NAME, Brand
from turnwire.server.errors import HttpError
from turnwire.server.guard import Headers
from turnwire.server.request import Request

FOLDER = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; manifest-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webp": "image/webp",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}

_START, _TURNS, _TURN, _REFERENCE, _SHARE = "index.html", "turns.html", "turn.html", "docs.html", "share.html"
_ASSETS = "/assets/"
_GUIDE = "/guide"
_NO_GUIDE = (
    "The documentation is not installed",
    "This installation has no documentation. The wheel and the source archive have it, and the repository has it:",
)
_NO_GUIDE_PAGE = ("There is no such page", "It may have moved. Start at the top, and search there:")
_WIDGET = "/widget.js"
# Files at the root of the app: a service worker controls only paths below its own.
_ROOT_FILES = (_WIDGET, "/sw.js")
_MANIFEST = "app.webmanifest"
_NOTIFY = b'<script type="module" src="/assets/notify.js"></script>\n'
_TURN_PATH = re.compile(r"/turns/[^/]+")
_SHARE_PATH = re.compile(r"/share/[^/]+")
_ADDRESS = re.compile(rb'"/assets/([\w.-]+)"')
_HASHED_NAME = re.compile(r"-[A-Z0-9]{8}\.\w+")
# These formats are compressed already.
_COMPRESSED = (".png", ".webp", ".woff2")


class PageFile(Struct, frozen=True):
    """A file as it is sent; `zipped` is empty if compression does not make it smaller."""

    body: bytes
    zipped: bytes
    version: str
    media_type: str
    is_hashed: bool = False

    def is_immutable(self, scope: dict[str, Any]) -> bool:
        """Return True if the address changes with the content, so that a browser can cache it for ever."""
        return self.is_hashed or scope["query_string"] == f"v={self.version}".encode("ascii")


class Pages:
    """The files by their paths. Without built pages there are none, and the API works all the same."""

    def __init__(self, pages: Mapping[str, bytes], assets: Mapping[str, PageFile]) -> None:
        self._pages = pages
        self._assets = assets
        self._built = lru_cache(maxsize=16)(self._build)

    def find(self, request: Request) -> PageFile | None:
        """Return the file of a path. A client that does not accept HTML at `/` gets the API's plain text instead.

        Raises HttpError 405 at `/docs` and below `/guide`, which have no other answer.
        """
        scope, path = request.scope, request.path
        if request.method not in ("GET", "HEAD"):
            if path == "/docs" or is_guide(path):
                allowed = {"Allow": "GET, HEAD"}
                raise HttpError(405, "method_not_allowed", "only GET and HEAD are answered here", headers=allowed)
            return None
        if path in _ROOT_FILES:
            return self._assets.get(path[1:])
        if path.startswith(_ASSETS):
            return self._assets.get(path.removeprefix(_ASSETS))
        if path == "/":
            return self._page(_START, scope) if b"text/html" in request.headers.get(b"accept", b"") else None
        if path == "/docs":
            return self._page(_REFERENCE, scope)
        if _SHARE_PATH.fullmatch(path):
            return self._page(_SHARE, scope)
        if path == "/turns":
            return self._page(_TURNS, scope)
        return self._page(_TURN, scope) if _TURN_PATH.fullmatch(path) else None

    def _page(self, name: str, scope: dict[str, Any]) -> PageFile | None:
        return self._built(name, scope.get("root_path", "")) if name in self._pages else None

    def _build(self, name: str, root: str) -> PageFile:
        """Return the HTML with the brand, and with asset addresses that begin at `root` and contain their version."""

        def address(match: re.Match[bytes]) -> bytes:
            asset_name = match[1].decode("ascii")
            asset = self._assets.get(asset_name)
            version = f"?v={asset.version}" if asset else ""
            return f'"{quote(root)}{_ASSETS}{asset_name}{version}"'.encode("ascii")

        return _page_file(name, _ADDRESS.sub(address, self._pages[name]))


def _completed(page: bytes, brand: Brand, *, has_push: bool) -> bytes:
    """Return a page with its brand, and with the script that offers notifications."""
    if has_push:
        page = page.replace(b"</head>", _NOTIFY + b"</head>")
    if brand == Brand():
        return page
    title = f"{html.escape(brand.name)}</title>".encode()
    page = page.replace(f"{DEFAULT_NAME}</title>".encode(), title)
    if brand.logo_name:
        page = page.replace(b'"/assets/icon.svg" type="image/svg+xml"', f'"/assets/{brand.logo_name}"'.encode())
    return page.replace(b"</head>", brand.head().encode() + b"</head>")


async def send_page(request: Request, page: PageFile, status: int = 200) -> None:
    tag = f'W/"{page.version}"'.encode("ascii")
    caching = b"public, max-age=31536000, immutable" if page.is_immutable(request.scope) else b"no-cache"
    # The widget is for pages of other origins; everything else is for our own.
    resource_policy = b"cross-origin" if request.path == _WIDGET else b"same-origin"
    headers: Headers = [
        (b"content-security-policy", POLICY.encode("ascii")),
        (b"cross-origin-resource-policy", resource_policy),
        (b"etag", tag),
        (b"cache-control", caching),
        (b"vary", b"Accept, Accept-Encoding"),
    ]
    if tag in request.headers.get(b"if-none-match", b""):
        await request.respond(304, headers=headers)
        return
    body = page.body
    if page.zipped and b"gzip" in request.headers.get(b"accept-encoding", b""):
        body = page.zipped
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-type", page.media_type.encode("ascii")))
    headers.append((b"content-length", str(len(body)).encode("ascii")))
    await request.respond(status, b"" if request.method == "HEAD" else body, headers)


def is_guide(path: str) -> bool:
    return path == _GUIDE or path.startswith(f"{_GUIDE}/")


async def send_guide(request: Request) -> None:
    """Send a file of the documentation; for a missing file, a page that says so, with status 404."""
    if request.path == _GUIDE:
        # The links of the pages are relative, so the address must end with a slash.
        location = quote(request.scope.get("root_path", "")) + _GUIDE + "/"
        await request.respond(307, headers=[(b"location", location.encode("ascii"))])
        return
    status, page = await asyncio.to_thread(_guide_file, request.path.removeprefix(f"{_GUIDE}/"))
    await send_page(request, page, status)


def _guide_file(name: str) -> tuple[int, PageFile]:
    """Return the status and the file of a name, which may be any text."""
    # Imported here: a server whose documentation nobody reads does not load the renderer.
    from turnwire.server.guide.site import message_page, own_guide

    guide = own_guide()
    if guide is None:
        return 404, _page_file("missing.html", message_page(*_NO_GUIDE).encode())
    name = name or "index.html"
    if name not in guide.names:
        top = "../" * name.count("/") or "./"
        return 404, _page_file("missing.html", message_page(*_NO_GUIDE_PAGE, top, f"{top}guide.css").encode())
    return 200, _existing_guide_file(name)


@cache
def _existing_guide_file(name: str) -> PageFile:
    """Return a file that the documentation has, rendered and compressed once."""
    from turnwire.server.guide.site import own_guide

    guide = own_guide()
    return _page_file(name, (guide and guide.read(name)) or b"")


@cache
def read_pages(brand: Brand, *, has_push: bool) -> Pages:
    """Return the built pages, as the settings change them."""
    assets = {path.name: path.read_bytes() for path in sorted((FOLDER / "assets").glob("*"))}
    if brand.colour is not None:
        assets["brand.css"] = brand.style().encode()
    if brand.logo is not None:
        assets[brand.logo_name] = brand.logo.read_bytes()
    if brand != Brand() and _MANIFEST in assets:
        assets[_MANIFEST] = brand.manifest(assets[_MANIFEST])
    return Pages(
        {path.name: _completed(path.read_bytes(), brand, has_push=has_push) for path in FOLDER.glob("*.html")},
        {name: _page_file(name, body) for name, body in assets.items() if Path(name).suffix in MEDIA_TYPES},
    )


def _page_file(name: str, body: bytes) -> PageFile:
    suffix = Path(name).suffix
    zipped = b"" if suffix in _COMPRESSED else gzip.compress(body, 9, mtime=0)
    return PageFile(
        body=body,
        zipped=zipped if len(zipped) < len(body) else b"",
        version=hashlib.sha256(body).hexdigest()[:16],
        media_type=MEDIA_TYPES[suffix],
        is_hashed=_HASHED_NAME.search(name) is not None,
    )
