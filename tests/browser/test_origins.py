"""Tests of pages of other origins: allowed ones may send and read, others may not, and no cookie helps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from playwright.async_api import Browser

from tests.browser.browser_tab import new_context
from tests.browser.conftest import Serve
from tests.serving import saying

STREAM = """
async ([url, headers]) => {
  const answer = await fetch(`${url}/chat/stream`, {
    method: "POST", headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify({ message: "Hello", session_id: "cors" }),
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let chunk; !(chunk = await reader.read()).done; ) text += chunk.value;
  const turn = answer.headers.get("X-Turn-Id");
  const resumed = { headers: { "Last-Event-ID": "3", ...headers } };
  const again = await fetch(`${url}/v1/turns/${turn}/events`, resumed);
  return { status: answer.status, turn, text, rest: await again.text() };
}
"""
REFUSED = """
async ([url, options]) => {
  try { return (await fetch(url, options)).status } catch (error) { return error.name }
}
"""
SOCKET = """
(url) => new Promise(resolve => {
  const socket = new WebSocket(url);
  socket.onopen = () => resolve("open");
  socket.onerror = () => resolve("refused");
})
"""


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\nConnection: close\r\n\r\n<!doctype html>"


@asynccontextmanager
async def page_elsewhere(browser: Browser) -> AsyncIterator[tuple[Any, str]]:
    """Open an empty page of another server."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(EMPTY)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = await new_context(browser)
        try:
            page = await context.new_page()
            await page.goto(url)
            yield page, url
        finally:
            await context.close()


async def test_allowed_origin_can_stream_and_resume(browser: Browser, serve: Serve) -> None:
    async with page_elsewhere(browser) as (page, origin), serve(saying("Hi", "!"), allowed_origins=[origin]) as server:
        result = await page.evaluate(STREAM, [server.url, {"Idempotency-Key": "k1"}])
        assert result["status"] == 200
        assert result["turn"]
        assert '"type":"done"' in result["text"]
        assert '"type":"done"' in result["rest"]
        assert '"type":"session"' not in result["rest"]
        assert await page.evaluate(SOCKET, server.url.replace("http", "ws") + "/v1/ws") == "open"
        # A key makes the browser send a preflight request.
        _, text = await server.turnwire.keys.create("anna", ("read", "write"))
        result = await page.evaluate(STREAM, [server.url, {"Authorization": f"Bearer {text}"}])
        assert result["status"] == 200


async def test_other_origin_is_refused_and_starts_nothing(browser: Browser, serve: Serve) -> None:
    async with page_elsewhere(browser) as (page, _), serve(saying("Hi")) as server:
        body = '{"message": "Hello"}'
        attempts: list[dict[str, Any]] = [
            {},
            {"credentials": "include"},
            {"method": "POST", "body": body, "headers": {"Content-Type": "application/json"}},
            # Simple requests need no preflight: their response cannot be read, and they start nothing.
            {"method": "POST", "body": body, "headers": {"Content-Type": "text/plain"}},
            {"method": "POST", "body": body, "mode": "no-cors"},
        ]
        for options in attempts:
            for path in ("/v1/sessions", "/chat/stream"):
                if options.get("method") or path == "/v1/sessions":
                    assert await page.evaluate(REFUSED, [server.url + path, options]) in ("TypeError", 0)
        assert await page.evaluate(SOCKET, server.url.replace("http", "ws") + "/v1/ws") == "refused"
        assert await server.written() == (0, 0)


async def test_cookie_is_accepted_from_the_own_origin_only(browser: Browser, serve: Serve) -> None:
    """Another port is another origin but the same site, so the browser does send the cookie."""
    async with page_elsewhere(browser) as (page, _), serve(saying("Hi")) as server:
        _, text = await server.turnwire.keys.create("anna", ("read", "write", "approve"))
        own = await page.context.new_page()
        await own.goto(server.url)
        login = """async (key) => (await fetch("/login", {
            method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }) })).status"""
        assert await own.evaluate(login, text) == 200
        assert await own.evaluate("async () => (await fetch('/v1/sessions', { method: 'POST' })).status") == 201
        socket_url = server.url.replace("http", "ws") + "/v1/ws"
        assert await own.evaluate(SOCKET, socket_url) == "open"
        # Only the cookie can open this stream: an EventSource sends no custom headers.
        opened = """() => new Promise(resolve => {
            const source = new EventSource("/v1/sessions/s/events");
            source.onopen = () => resolve("open"); source.onerror = () => resolve("refused"); })"""
        await own.evaluate(
            """() => fetch("/v1/sessions", { method: "POST", headers: { "Content-Type": "application/json" },
               body: JSON.stringify({ id: "s" }) })"""
        )
        assert await own.evaluate(opened) == "open"
        before = await server.written("anna")
        assert await page.evaluate(SOCKET, socket_url) == "refused"
        for options in (
            {"credentials": "include"},
            {"credentials": "include", "method": "POST", "mode": "no-cors"},
            {"credentials": "include", "method": "POST", "body": '{"message": "Hello"}', "mode": "no-cors"},
        ):
            assert await page.evaluate(REFUSED, [server.url + "/v1/sessions", options]) in ("TypeError", 0)
        assert await server.written("anna") == before
