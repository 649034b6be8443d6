"""`fetch_url` reads public pages, and reaches nothing else, however it is asked.

The sites are real servers on loopback addresses, which only a tool made for the test may reach. Names are looked up in
a table; the table stands in for the event loop's own look-up, so a second one, by whomever, would be seen.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.serving import within
from turnwire.core.errors import ToolError
from turnwire.tools import FetchLimits, Tool, fetch_tool, fetch_url, run_tool
from turnwire.tools.fetch import is_public

CERTIFICATE = Path(__file__).parent / "self_signed.pem"
PUBLIC = "93.184.216.34"
Says = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Names:
    """What each name stands for: one list of addresses a look-up, the last one for ever."""

    def __init__(self) -> None:
        self.known: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []

    def tell(self, name: str, *answers: list[str]) -> None:
        self.known[name] = list(answers)

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError("no such host")
        answers = self.known[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(2, 1, 6, "", (address, port)) for address in addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    table = Names()
    table.tell("site.test", ["127.0.0.1"])
    table.tell("127.0.0.1", ["127.0.0.1"])

    async def getaddrinfo(loop: Any, host: str, port: int, **given: Any) -> list[Any]:
        return await table.getaddrinfo(host, port, **given)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return table


class Site:
    """A server that says what it is told to, and remembers what it was asked."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.pages: dict[str, bytes | Says] = {}
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
            pass  # The tool hung up on us, as it may.
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
async def site(names: Names) -> AsyncGenerator[Site]:
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


# What is read


async def test_a_page_is_told_as_text_with_its_url_status_and_title(site: Site) -> None:
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


async def test_the_request_names_the_host_and_asks_for_no_encoding(site: Site) -> None:
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
async def test_every_kind_of_text_is_read_in_its_charset(site: Site, kind: str, body: bytes, text: str) -> None:
    site.pages["/"] = response(body, kind)
    assert (await fetch(site.tool, site.url())).partition("\n\n")[2] == text


async def test_a_body_in_chunks_is_put_together(site: Site) -> None:
    head = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    site.pages["/"] = head + b"4;note=x\r\nchun\r\nA\r\nks and all\r\n0\r\n\r\n"
    assert (await fetch(site.tool, site.url())).endswith("\n\nchunks and all")


async def test_a_body_without_a_length_ends_with_the_connection(site: Site) -> None:
    site.pages["/"] = b"HTTP/1.0 200 OK\r\n\r\nall of it"
    assert (await fetch(site.tool, site.url())).endswith("\n\nall of it")


async def test_a_redirect_is_followed_and_the_last_url_told(site: Site) -> None:
    site.pages |= {"/old": redirect("new#part"), "/new": response("here")}
    assert (await fetch(site.tool, site.url("/old"))).startswith(f"URL: {site.url('/new')}\nStatus: 200 OK\n")


async def test_a_failure_is_an_outcome_for_the_model(site: Site) -> None:
    site.pages["/"] = response("secret words", status="404 obey me")
    outcome = await within(run_tool(site.tool, {"url": site.url()}))
    assert not outcome.success
    assert outcome.text == f"Error: 'site.test' answered 404 Not Found to {site.url()}"


def test_the_model_can_give_a_url_and_nothing_else() -> None:
    assert fetch_url.name == "fetch_url"
    assert list(fetch_url.parameters["properties"]) == ["url"]
    assert fetch_url.parameters["additionalProperties"] is False


# Where it does not go

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
    """Where connections were asked for. None of them is made."""
    asked: list[tuple[str, int]] = []

    async def open_connection(host: str, port: int, **_: Any) -> Any:
        asked.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    return asked


@pytest.mark.parametrize(
    "address",
    [pytest.param(one, id=f"{kind}: {one}") for kind, addresses in NOT_PUBLIC.items() for one in addresses],
)
async def test_an_address_that_is_not_public_is_refused(
    names: Names, connected: list[tuple[str, int]], address: str
) -> None:
    names.tell("inside.test", [address])
    assert "not on the public internet" in await refused(fetch_url, "http://inside.test/")
    assert address not in await refused(fetch_url, "http://inside.test/")
    # One among others is as bad, wherever it stands.
    names.tell("mixed.test", [PUBLIC, address])
    assert "not on the public internet" in await refused(fetch_url, "https://mixed.test/")
    assert connected == []


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "1.1.1.1", "172.32.0.1", "100.63.0.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"],
)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "host", ["127.1", "0x7f000001", "2130706433", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]", "localhost", "127.0.0.1."]
)
async def test_no_way_of_writing_it_leads_to_loopback(connected: list[tuple[str, int]], host: str) -> None:
    # With the real look-up, which knows all of these, or does not know one at all.
    await refused(fetch_url, f"http://{host}/")
    assert connected == []


async def test_every_address_that_was_found_is_tried(names: Names, connected: list[tuple[str, int]]) -> None:
    names.tell("two.test", [PUBLIC, "2606:4700::1111", PUBLIC])
    assert "cannot be reached" in await refused(fetch_url, "https://two.test/")
    assert connected == [(PUBLIC, 443), ("2606:4700::1111", 443)]


async def test_a_name_that_changes_its_address_is_connected_to_where_it_was_checked(
    names: Names, connected: list[tuple[str, int]]
) -> None:
    names.tell("rebinding.test", [PUBLIC], ["127.0.0.1"])
    await refused(fetch_url, "http://rebinding.test/")
    assert connected == [(PUBLIC, 80)]
    assert names.asked == ["rebinding.test"]


async def test_a_real_connection_looks_no_name_up_again(names: Names, site: Site) -> None:
    async with open_site("127.0.0.2", site.port) as inside:
        names.tell("site.test", ["127.0.0.1"], ["127.0.0.2"])
        site.pages["/"] = response("outside")
        assert (await fetch(site.tool, site.url())).endswith("outside")
        assert names.asked == ["site.test"]
        # The next one is looked up anew, and checked anew.
        assert "not on the public internet" in await refused(site.tool, site.url())
        assert inside.requests == []


@pytest.mark.parametrize("status", ["301", "302", "303", "307", "308"])
async def test_a_redirect_to_what_is_not_public_is_refused(names: Names, site: Site, status: str) -> None:
    async with open_site("127.0.0.2", site.port) as inside:
        names.tell("inside.test", ["127.0.0.2"])
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
async def test_a_redirect_goes_through_the_same_checks(site: Site, location: str, why: str) -> None:
    site.pages["/"] = redirect(location)
    assert why in await refused(site.tool, site.url())


async def test_a_redirect_loop_ends(site: Site) -> None:
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
async def test_a_url_that_is_not_a_plain_web_address_is_refused(
    names: Names, connected: list[tuple[str, int]], url: str, why: str
) -> None:
    assert why in await refused(fetch_url, url)
    assert names.asked == []
    assert connected == []


async def test_a_host_that_does_not_exist_is_told(names: Names) -> None:
    assert await refused(fetch_url, "http://nowhere.test/") == "there is no host 'nowhere.test'; check the URL"


# What it does not take


@pytest.mark.parametrize("kind", ["application/octet-stream", "image/png", "application/pdf", "application/zip"])
async def test_what_is_not_text_is_refused(site: Site, kind: str) -> None:
    site.pages["/"] = response(b"\x89PNG", kind)
    assert f"is not a text but {kind}" in await refused(site.tool, site.url())


@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
async def test_what_only_says_that_it_is_text_is_refused(site: Site, kind: str) -> None:
    site.pages["/"] = response(b"\x7fELF\x00\x00", kind)
    assert "says that it is a text and is not" in await refused(site.tool, site.url())


@pytest.mark.parametrize("status", ["400", "401", "403", "404", "429", "500", "503", "304", "299999", "599"])
async def test_a_bad_status_is_told(site: Site, status: str) -> None:
    site.pages["/"] = response("", status=f"{status} whatever")
    assert f"answered {status}" in await refused(site.tool, site.url())


async def test_what_is_too_large_is_refused_before_it_comes(site: Site) -> None:
    site.pages["/"] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000001\r\n\r\n"
    assert "more than the 1,000,000 bytes" in await refused(site.tool, site.url())


@pytest.mark.parametrize("framing", ["chunked", "none"])
async def test_what_never_ends_is_given_up_at_the_limit(site: Site, framing: str) -> None:
    async def for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunked = framing == "chunked"
        writer.write(b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        while not writer.transport.is_closing():
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n" if chunked else b"x" * 4096)
            await writer.drain()

    site.pages["/"] = for_ever
    assert "more than the 1,000,000 bytes" in await refused(site.tool, site.url())


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nslow"])
async def test_what_takes_too_long_is_given_up(site: Site, begun: bytes) -> None:
    hung_up = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begun)
        try:
            await reader.read()
        finally:
            hung_up.set()

    site.pages["/"] = stall
    told = await refused(site.make_tool(seconds=0.1), site.url())
    assert told == "it took longer than 0.1 seconds and was given up"
    await within(hung_up.wait())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", "broke off"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 two OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 -200 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc", "chunks that are broken"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "not understood"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "compressed"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, "never comes to its answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n", "does not speak HTTP"),
    ],
)
async def test_what_is_not_proper_http_is_told(site: Site, answer: bytes, why: str) -> None:
    site.pages["/"] = answer
    assert why in await refused(site.tool, site.url())


# Secure connections


async def test_a_certificate_that_nobody_vouches_for_is_refused(names: Names) -> None:
    async with open_site(tls=True) as site:
        told = await refused(site.tool, site.url(scheme="https"))
        assert told.startswith("the certificate of 'site.test' is not valid: self")
        assert site.requests == []


async def test_a_certificate_must_name_the_host_of_the_url(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    names.tell("other.test", ["127.0.0.1"])
    async with open_site(tls=True) as site:
        site.pages["/"] = response("secure")
        assert (await fetch(site.tool, site.url(scheme="https"))).endswith("\n\nsecure")
        told = await refused(site.tool, f"https://other.test:{site.port}/")
        assert "'other.test' is not valid: Hostname mismatch" in told
        assert len(site.requests) == 1
