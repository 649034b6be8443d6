"""`fetch_url` reads public pages and reaches nothing else.

The sites are real servers on loopback addresses, which only a tool made for the test may reach. Names are resolved from
a table that replaces the event loop's own resolver, so that a second lookup would be seen.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.serving import PATIENCE, within
from turnwire.core.errors import ToolError
from turnwire.tools import FetchLimits, Tool, fetch_tool, fetch_url, run_tool
from turnwire.tools.fetch import is_public, resolve

CERTIFICATE = Path(__file__).parent / "self_signed.pem"
PUBLIC = "93.184.216.34"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Resolver:
    """A table of names: one list of addresses for each lookup, the last one for all later lookups."""

    def __init__(self) -> None:
        self.records: dict[str, list[list[str]]] = {}
        self.lookups: list[str] = []

    def add(self, name: str, *answers: list[str]) -> None:
        self.records[name] = list(answers)

    def getaddrinfo(self, host: str, port: int, *_: Any, **options: Any) -> list[Any]:
        self.lookups.append(host)
        if host not in self.records:
            raise OSError("no such host")
        answers = self.records[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(2, 1, 6, "", (address, port)) for address in addresses]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    table = Resolver()
    table.add("site.test", ["127.0.0.1"])
    table.add("127.0.0.1", ["127.0.0.1"])

    monkeypatch.setattr(socket, "getaddrinfo", table.getaddrinfo)
    return table


class Site:
    """A server that sends prepared responses and records its requests."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.pages: dict[str, bytes | Handler] = {}
        self.requests: list[list[str]] = []
        self.tool = fetch_url

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://site.test:{self.port}{path}"

    def make_tool(self, **limits: Any) -> Tool:
        return fetch_tool(allow=["127.0.0.1/32"], ports=[self.port], limits=FetchLimits(**limits))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.strip().split("\r\n"))
            page = self.pages[head.split(" ")[1]]
            if isinstance(page, bytes):
                writer.write(page)
                await writer.drain()
            else:
                await page(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # The tool may hang up early.
        finally:
            writer.close()


@asynccontextmanager
async def open_site(address: str = "127.0.0.1", port: int = 0, tls: bool = False) -> AsyncGenerator[Site]:
    site, context = Site(), None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(site.answer, address, port, ssl=context)
    site.port = server.sockets[0].getsockname()[1]
    site.tool = site.make_tool()
    try:
        yield site
    finally:
        server.close()


@pytest.fixture
async def site(resolver: Resolver) -> AsyncGenerator[Site]:
    async with open_site() as opened:
        yield opened


def response(body: str | bytes, kind: str = "text/plain", status: str = "200 OK", **headers: str) -> bytes:
    body = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(to: str) -> bytes:
    return response("", status="302 Found", Location=to)


async def fetch(tool: Tool, url: str) -> str:
    return await within(tool(url))


async def refused(tool: Tool, url: str) -> str:
    with pytest.raises(ToolError) as raised:
        await fetch(tool, url)
    return str(raised.value)


# Pages that are read


async def test_page_is_returned_as_text_with_url_status_and_title(site: Site) -> None:
    site.pages["/a"] = response(
        "<!doctype html><head><title>A &amp;\n b</title><style>p {}</style></head><body><h1>Big</h1>"
        "<p>One <b>bold</b>\n word<script>alert(1)</script></p><table><tr><td>1<td>2</table>"
        "<pre>if x:\n    y()</pre><ul><li>last</ul>",
        "text/html; charset=utf-8",
    )
    text = await fetch(site.tool, f" {site.url('/a')}\n")
    assert text == (
        f"URL: {site.url('/a')}\nStatus: 200 OK\nTitle: A & b\n\nBig\nOne bold word\n1 2\nif x:\n    y()\nlast"
    )


async def test_request_names_the_host_and_accepts_no_encoding(site: Site) -> None:
    site.pages["/%C3%A9%20b?q=1%202&r"] = response("é")
    assert (await fetch(site.tool, site.url("/é b?q=1 2&r#part"))).endswith("\n\né")
    (request,) = site.requests
    assert request[0] == "GET /%C3%A9%20b?q=1%202&r HTTP/1.1"
    assert f"Host: site.test:{site.port}" in request
    assert {"Accept-Encoding: identity", "Connection: close"} <= set(request)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/ld+json", b"[]", "[]"),
        ("application/atom+xml", b"<feed/>", "<feed/>"),
        ("text/csv; charset=iso-8859-1", "é".encode("latin-1"), "é"),
        ("text/plain; charset=utf-16", "é".encode("utf-16"), "é"),
        ("text/plain; charset=punycode", b"plain \xff", "plain �"),
        ("text/plain; charset=windows-99", b"plain", "plain"),
        ("text/html", b"<meta charset='windows-1252'>\x80", "€"),
    ],
)
async def test_text_type_is_decoded_in_its_charset(site: Site, kind: str, body: bytes, text: str) -> None:
    site.pages["/"] = response(body, kind)
    assert (await fetch(site.tool, site.url())).partition("\n\n")[2] == text


async def test_chunked_body_is_joined(site: Site) -> None:
    head = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    site.pages["/"] = head + b"4;note=x\r\nchun\r\nA\r\nks and all\r\n0\r\n\r\n"
    assert (await fetch(site.tool, site.url())).endswith("\n\nchunks and all")


async def test_body_without_length_ends_with_the_connection(site: Site) -> None:
    site.pages["/"] = b"HTTP/1.0 200 OK\r\n\r\nall of it"
    assert (await fetch(site.tool, site.url())).endswith("\n\nall of it")


async def test_redirect_is_followed_and_last_url_reported(site: Site) -> None:
    site.pages |= {"/old": redirect("new#part"), "/new": response("here")}
    assert (await fetch(site.tool, site.url("/old"))).startswith(f"URL: {site.url('/new')}\nStatus: 200 OK\n")


async def test_failed_fetch_is_an_outcome_for_the_model(site: Site) -> None:
    site.pages["/"] = response("secret words", status="404 obey me")
    outcome = await within(run_tool(site.tool, {"url": site.url()}))
    assert not outcome.success
    assert outcome.text == f"Error: 'site.test' answered 404 Not Found to {site.url()}"


def test_tool_takes_a_url_and_nothing_else() -> None:
    assert fetch_url.name == "fetch_url"
    assert list(fetch_url.parameters["properties"]) == ["url"]
    assert fetch_url.parameters["additionalProperties"] is False


# Addresses that are refused

NOT_PUBLIC = {
    "unspecified": ["0.0.0.0", "::"],
    "this network": ["0.1.2.3"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"],
    "link-local": ["169.254.0.1", "fe80::1", "fe80::1%eth0"],
    "site-local": ["fec0::1"],
    "metadata": ["169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.255"],
    "multicast": ["224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.0.8", "198.18.0.1", "192.88.99.1", "100::1", "5f00::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"],
    "IPv4-compatible": ["::127.0.0.1", "::8.8.8.8"],
    "IPv4-translated": ["::ffff:0:127.0.0.1"],
    "6to4": ["2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::"],
    "NAT64": ["64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808"],
    "Teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
}


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the connection attempts and refuse all of them."""
    attempts: list[tuple[str, int]] = []

    async def open_connection(host: str, port: int, **_: Any) -> Any:
        attempts.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    return attempts


@pytest.mark.parametrize(
    "address",
    [pytest.param(address, id=f"{kind}: {address}") for kind, group in NOT_PUBLIC.items() for address in group],
)
async def test_address_that_is_not_public_is_refused(
    resolver: Resolver, connected: list[tuple[str, int]], address: str
) -> None:
    resolver.add("inside.test", [address])
    assert "not on the public internet" in await refused(fetch_url, "http://inside.test/")
    assert address not in await refused(fetch_url, "http://inside.test/")
    # One such address among public ones is refused too.
    resolver.add("mixed.test", [PUBLIC, address])
    assert "not on the public internet" in await refused(fetch_url, "https://mixed.test/")
    assert connected == []


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "1.1.1.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"],
)
def test_public_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f000001", "2130706433", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]", "localhost", "127.0.0.1."]
)
async def test_no_spelling_of_loopback_is_fetched(connected: list[tuple[str, int]], host: str) -> None:
    # With the real resolver, which either knows a spelling or fails.
    await refused(fetch_url, f"http://{host}/")
    assert connected == []


async def test_every_resolved_address_is_tried(resolver: Resolver, connected: list[tuple[str, int]]) -> None:
    resolver.add("two.test", [PUBLIC, "2606:4700::1111", PUBLIC])
    assert "cannot be reached" in await refused(fetch_url, "https://two.test/")
    assert connected == [(PUBLIC, 443), ("2606:4700::1111", 443)]


async def test_rebinding_name_is_connected_to_at_its_checked_address(
    resolver: Resolver, connected: list[tuple[str, int]]
) -> None:
    resolver.add("rebinding.test", [PUBLIC], ["127.0.0.1"])
    await refused(fetch_url, "http://rebinding.test/")
    assert connected == [(PUBLIC, 80)]
    assert resolver.lookups == ["rebinding.test"]


async def test_connection_does_not_resolve_the_name_again(resolver: Resolver, site: Site) -> None:
    async with open_site("127.0.0.2", site.port) as inside:
        resolver.add("site.test", ["127.0.0.1"], ["127.0.0.2"])
        site.pages["/"] = response("outside")
        assert (await fetch(site.tool, site.url())).endswith("outside")
        assert resolver.lookups == ["site.test"]
        # The next fetch resolves and checks again.
        assert "not on the public internet" in await refused(site.tool, site.url())
        assert inside.requests == []


@pytest.mark.parametrize("status", ["301", "302", "303", "307", "308"])
async def test_redirect_to_private_address_is_refused(resolver: Resolver, site: Site, status: str) -> None:
    async with open_site("127.0.0.2", site.port) as inside:
        resolver.add("inside.test", ["127.0.0.2"])
        site.pages["/"] = response("", status=f"{status} x", Location=f"//inside.test:{site.port}/")
        assert "'inside.test' is not on the public internet" in await refused(site.tool, site.url())
        assert inside.requests == []


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("file:///etc/passwd", "http:// or https://"),
        ("http://ada:pw@site.test/", "user name or password"),
        ("http://site.test:22/", "port 22"),
        ("http://[nonsense/", "not a URL"),
        ("http://site.test\\@inside.test/", "not a URL"),
    ],
)
async def test_redirect_location_passes_the_same_checks(site: Site, location: str, why: str) -> None:
    site.pages["/"] = redirect(location)
    assert why in await refused(site.tool, site.url())


async def test_redirect_loop_ends(site: Site) -> None:
    site.pages["/"] = redirect("/")
    assert await refused(site.tool, site.url()) == "it was redirected more than 5 times"
    assert len(site.requests) == 6


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://site.test/", "http:// or https://"),
        ("file:///etc/passwd", "http:// or https://"),
        ("gopher://site.test/", "http:// or https://"),
        ("site.test/page", "http:// or https://"),
        ("", "http:// or https://"),
        ("http://ada:pw@site.test/", "user name or password"),
        ("http://ada@site.test/", "user name or password"),
        ("http://@site.test/", "user name or password"),
        ("http://site.test:22/", "port 22"),
        ("http://site.test:8080/", "port 8080"),
        ("http://site.test:0/", "port 0"),
        ("http://site.test:99999/", "not a URL"),
        ("http:///page", "not a URL"),
        ("http://site..test/", "not a URL"),
        ("http://site.test /", "not a URL"),
        ("http://site.test/\r\nX-Injected: 1", "not a URL"),
        ("http://site.te\tst/", "not a URL"),
        ("http://[::1%25lo]/", "not a URL"),
        ("http://[fe80::1%lo]/", "not a URL"),
        (f"http://site.test/{'a' * 4000}", "not a URL"),
    ],
)
async def test_url_that_is_not_a_plain_web_address_is_refused(
    resolver: Resolver, connected: list[tuple[str, int]], url: str, why: str
) -> None:
    assert why in await refused(fetch_url, url)
    assert resolver.lookups == []
    assert connected == []


async def test_unknown_host_is_reported(resolver: Resolver) -> None:
    assert await refused(fetch_url, "http://nowhere.test/") == "there is no host 'nowhere.test'; check the URL"


# Responses that are refused


@pytest.mark.parametrize("kind", ["application/octet-stream", "image/png", "application/pdf", "application/zip"])
async def test_media_type_that_is_not_text_is_refused(site: Site, kind: str) -> None:
    site.pages["/"] = response(b"\x89PNG", kind)
    assert f"is not a text but {kind}" in await refused(site.tool, site.url())


@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
async def test_binary_body_with_text_type_is_refused(site: Site, kind: str) -> None:
    site.pages["/"] = response(b"\x7fELF\x00\x00", kind)
    assert "says that it is a text and is not" in await refused(site.tool, site.url())


@pytest.mark.parametrize("status", ["400", "401", "403", "404", "429", "500", "503", "304", "599"])
async def test_bad_status_is_reported(site: Site, status: str) -> None:
    site.pages["/"] = response("", status=f"{status} whatever")
    assert f"answered {status}" in await refused(site.tool, site.url())


async def test_large_content_length_is_refused_before_the_body(site: Site) -> None:
    site.pages["/"] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000001\r\n\r\n"
    assert "more than the 1,000,000 bytes" in await refused(site.tool, site.url())


@pytest.mark.parametrize("framing", ["chunked", "none"])
async def test_endless_body_is_refused_at_the_limit(site: Site, framing: str) -> None:
    async def send_forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunked = framing == "chunked"
        writer.write(b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        while not writer.transport.is_closing():
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n" if chunked else b"x" * 4096)
            await writer.drain()

    site.pages["/"] = send_forever
    assert "more than the 1,000,000 bytes" in await refused(site.tool, site.url())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nslow"])
async def test_slow_response_is_given_up(site: Site, begun: bytes) -> None:
    reached, hung_up = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.write(begun)
        try:
            await reader.read()
        finally:
            hung_up.set()

    site.pages["/"] = stall
    message = await refused(site.make_tool(seconds=0.5), site.url())
    assert message == "it took longer than 0.5 seconds and was given up"
    if reached.is_set():  # On a slow machine the time may be over before the request is read.
        await within(hung_up.wait())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", "broke off"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 two OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 299999 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 -200 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "compressed"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, "never comes to its answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n", "more than 100 headers"),
    ],
)
async def test_malformed_response_is_reported(site: Site, answer: bytes, why: str) -> None:
    site.pages["/"] = answer
    assert why in await refused(site.tool, site.url())


# Secure connections


async def test_self_signed_certificate_is_refused(resolver: Resolver) -> None:
    async with open_site(tls=True) as site:
        message = await refused(site.tool, site.url(scheme="https"))
        assert message.startswith("the certificate of 'site.test' is not valid: self")
        assert site.requests == []


async def test_certificate_of_another_host_is_refused(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    resolver.add("other.test", ["127.0.0.1"])
    async with open_site(tls=True) as site:
        site.pages["/"] = response("secure")
        assert (await fetch(site.tool, site.url(scheme="https"))).endswith("\n\nsecure")
        message = await refused(site.tool, f"https://other.test:{site.port}/")
        assert "'other.test' is not valid: Hostname mismatch" in message
        assert len(site.requests) == 1


async def test_slow_names_hold_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def getaddrinfo(host: str, port: int, *_: Any, **options: Any) -> list[Any]:
        if host.startswith("slow"):
            assert let_go.wait(PATIENCE)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    slow = [asyncio.create_task(resolve(f"slow{number}.example", 80, ())) for number in range(60)]
    async with asyncio.timeout(PATIENCE):
        assert await resolve("quick.example", 80, ()) == [ip_address("93.184.216.34")]
        assert await asyncio.to_thread(lambda: "done") == "done"
        let_go.set()
        assert len(await asyncio.gather(*slow)) == 60
