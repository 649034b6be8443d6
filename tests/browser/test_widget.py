"""The widget on a page of another origin with a strict policy of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from tests.browser.browser_tab import PATIENCE_MS, REPORT_VIOLATIONS, Tab, new_context
from tests.browser.conftest import Serve
from tests.browser.test_accessibility import violations
from tests.clients.scenes import play
from tests.serving import Puppet, Served, ready, within

PICTURE = "![x](/of-the-host.png) ![y](https://tracker.example/y.png)"


class HostPage:
    """A server of another origin whose page embeds the widget; `attributes` are those of its script element."""

    def __init__(self) -> None:
        self.attributes = ""
        self.server_url = ""
        self.paths: list[str] = []
        self.origin = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.paths.append(head.split()[1].decode())
            script = f'<script src="{self.server_url}/widget.js" {self.attributes} async></script>'
            body = f"<!doctype html><html lang=en><title>Shop</title><h1>Shop</h1>{script}".encode()
            policy = f"default-src 'none'; script-src {self.server_url}; connect-src {self.server_url}; img-src 'self'"
            writer.write(
                f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
                f"Cross-Origin-Embedder-Policy: require-corp\r\n"
                f"Content-Security-Policy: {policy}\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()


@asynccontextmanager
async def host_page() -> AsyncIterator[HostPage]:
    host = HostPage()
    async with await asyncio.start_server(host.answer, "127.0.0.1", 0) as listening:
        host.origin = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield host


@asynccontextmanager
async def embedded(browser: Browser, host: HostPage, server: Served, attributes: str = "") -> AsyncIterator[Page]:
    """Open the host's page; fail if its policy has stopped anything or a script has thrown."""
    host.server_url, host.attributes = server.url, attributes
    context = await new_context(browser)
    failures: list[str] = []
    try:
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: failures.append(str(error)))
        await page.expose_function("reportViolation", lambda *fields: failures.append(str(fields)))
        await page.add_init_script(REPORT_VIOLATIONS)
        await page.goto(host.origin)
        yield page
        assert failures == []
    finally:
        await context.close()


async def ask(page: Page, message: str) -> None:
    await page.get_by_label("Message").fill(message)
    await page.get_by_role("button", name="Send").click()


async def test_widget_streams_stops_and_returns_with_its_conversation(
    browser: Browser, serve: Serve, puppet: Puppet
) -> None:
    agents = {"other": play, "support": puppet}
    async with host_page() as host, serve(agents=agents, allowed_origins=[host.origin]) as server:
        _, key = await server.turnwire.keys.create("anna", ("read", "write", "approve"))
        attributes = f'data-agent=support data-key="{key}" data-title="Help &amp; more"'
        async with embedded(browser, host, server, attributes) as page:
            launcher = page.get_by_role("button", name="Help & more")
            assert await server.written("anna") == (0, 0)
            await launcher.click()
            await expect(page.get_by_role("dialog", name="Help & more")).to_be_visible()
            await ask(page, "Hello")
            part = await puppet.part()
            assert (part.turn.principal, part.turn.agent) == ("anna", "support")
            part.say("**On** ")
            answer = page.get_by_test_id("answer")
            # Each piece is shown before the next one is sent.
            await expect(answer.locator("strong")).to_have_text("On")
            part.say(f"Friday. {PICTURE}")
            await expect(answer).to_contain_text("Friday.")
            await page.get_by_role("button", name="Stop").click()
            await within(part.over.wait())
            await expect(page.get_by_test_id("turn")).to_have_attribute("data-outcome", "cancelled")
            await page.reload()
            await launcher.click()
            await expect(page.get_by_test_id("answer")).to_contain_text("On Friday.")
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)
            await expect(launcher).to_be_focused()
            assert await server.written("anna") == (1, 1)
        # An answer cannot make the visitor's browser call the host's server.
        assert not [path for path in host.paths if "of-the-host" in path]


async def test_widget_begins_another_conversation_when_its_own_is_deleted(browser: Browser, serve: Serve) -> None:
    async with host_page() as host, serve(play, allowed_origins=[host.origin]) as server:
        _, key = await server.turnwire.keys.create("anna", ("read", "write"))
        async with embedded(browser, host, server, f'data-key="{key}"') as page:
            await page.get_by_role("button", name="Chat").click()
            await ask(page, "plain")
            await expect(page.get_by_test_id("turn")).to_have_attribute("data-outcome", "completed")
            (session,) = await server.turnwire.store.list_sessions("anna")
            await server.turnwire.store.delete_session("anna", session.id)
            await ask(page, "plain")
            refusal = page.get_by_role("alert").filter(has_text="session")
            await expect(page.get_by_test_id("turn").nth(1).or_(refusal).first).to_be_visible()
            # The widget's stream may have ended before. Otherwise the message box keeps the refused message.
            if await page.get_by_test_id("turn").count() == 1:
                await expect(page.get_by_label("Message")).to_have_value("plain")
                await page.get_by_role("button", name="Send").click()
            await expect(page.get_by_test_id("turn")).to_have_count(2)
            await expect(page.get_by_test_id("turn").last).to_have_attribute("data-outcome", "completed")
            assert await server.written("anna") == (1, 1)


async def test_widget_decides_about_tool_calls(browser: Browser, serve: Serve) -> None:
    async with (
        host_page() as host,
        serve(play, allowed_origins=[host.origin]) as server,
        embedded(browser, host, server) as page,
    ):
        await page.get_by_role("button", name="Chat").click()
        await ask(page, "pay")
        await expect(page.locator(".approval pre")).to_contain_text("amount: 40")
        assert await violations(Tab(page, host.origin)) == []
        await page.get_by_role("button", name="Allow").click()
        await expect(page.get_by_test_id("answer")).to_have_text("Paid.")
        await expect(page.locator(".approval")).to_have_count(0)
        await ask(page, "fail")
        await expect(page.get_by_test_id("turn").last).to_contain_text("the model is away")


async def test_widget_says_where_an_answer_comes_from(browser: Browser, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "tea.md").write_text("# Tea\n\nTea is brewed with water that has boiled.")
    async with (
        host_page() as host,
        serve(docs=[tmp_path / "tea.md"], allowed_origins=[host.origin]) as server,
        embedded(browser, host, server) as page,
    ):
        await within(ready(server.turnwire))
        await page.get_by_role("button", name="Chat").click()
        await ask(page, "What is tea brewed with?")
        await expect(page.get_by_test_id("answer")).to_contain_text("water that has boiled")
        await expect(page.get_by_test_id("turn")).to_contain_text("Quoted word for word, no model")


async def test_widget_of_an_origin_that_is_not_allowed_says_so_and_starts_nothing(
    browser: Browser, serve: Serve, puppet: Puppet
) -> None:
    async with host_page() as host, serve() as server, embedded(browser, host, server) as page:
        await page.get_by_role("button", name="Chat").click()
        await ask(page, "Hello")
        await expect(page.get_by_role("alert")).not_to_be_empty()
        await expect(page.get_by_label("Message")).to_have_value("Hello")
        assert await server.written() == (0, 0)


async def test_widget_with_a_wrong_key_says_so(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with host_page() as host, serve(allowed_origins=[host.origin]) as server:
        await server.turnwire.keys.create("anna", ("read",))
        async with embedded(browser, host, server, "data-key=tw_wrong") as page:
            await page.get_by_role("button", name="Chat").click()
            await expect(page.get_by_role("alert")).to_contain_text("API key")
