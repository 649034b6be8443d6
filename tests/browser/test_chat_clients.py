"""Chat hooks of other projects in a browser: a tool of the page, a restart of the server, a reload of the page."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.browser_tab import PATIENCE_MS
from tests.browser.conftest import Serve
from tests.browser.test_origins import page_elsewhere
from tests.clients.scenes import TwoWayAgent
from tests.node_packages import node_with

# The packages may have to be installed first.
pytestmark = pytest.mark.timeout(420)

HERE = Path(__file__).parent / "chat_clients"
CLIENTS = ["ai-sdk", "tanstack"]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page with all clients as one script."""
    file = tmp_path_factory.mktemp("chat-clients") / "page.js"
    node = node_with(HERE)
    options = ["--bundle", "--format=esm", "--jsx=automatic", "--define:process.env.NODE_ENV='development'"]
    command = [node, "node_modules/esbuild/bin/esbuild", "page.jsx", *options, f"--outfile={file}"]
    subprocess.run(command, cwd=HERE, check=True, timeout=120, capture_output=True)
    return file.read_text()


@asynccontextmanager
async def chat_page(browser: Browser) -> AsyncIterator[tuple[Page, str]]:
    """Open a page of another origin; fail if it has thrown anything."""
    errors: list[str] = []
    async with page_elsewhere(browser) as (page, origin):
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page, origin
        assert errors == []


async def open_chat(page: Page, program: str, client: str, url: str) -> None:
    await page.add_script_tag(content=program, type="module")
    await page.wait_for_function("() => window.openChat")
    await page.evaluate("([name, url]) => openChat(name, url, 'chat-1')", [client, url])


async def send(page: Page, message: str) -> None:
    await page.get_by_label("Message").fill(message)
    await page.get_by_role("button", name="Send").click()


@pytest.mark.parametrize("client", CLIENTS)
async def test_tool_of_the_page_continues_the_turn(browser: Browser, program: str, serve: Serve, client: str) -> None:
    async with chat_page(browser) as (page, origin), serve(TwoWayAgent(), allowed_origins=[origin]) as server:
        await open_chat(page, program, client, server.url)
        await page.evaluate("() => setPlace('Bern')")
        await send(page, "locate")
        await expect(page.get_by_test_id("assistant").last).to_contain_text("You are in Bern.")
        await expect(page.get_by_test_id("chat")).to_have_attribute("data-status", "ready")
        assert await page.evaluate("() => calls") == [{"exact": True}]
        assert await server.written() == (1, 1)


@pytest.mark.parametrize("client", CLIENTS)
async def test_tool_of_the_page_continues_the_turn_after_a_restart_and_a_reload(
    browser: Browser, program: str, serve: Serve, client: str
) -> None:
    async with chat_page(browser) as (page, origin):
        async with serve(TwoWayAgent(), store="sqlite", allowed_origins=[origin]) as server:
            await open_chat(page, program, client, server.url)
            await send(page, "locate")
            await page.wait_for_function("() => calls.length === 1")
            await page.reload()
        async with serve(TwoWayAgent(), store="sqlite", allowed_origins=[origin]) as server:
            await open_chat(page, program, client, server.url)
            await page.evaluate("() => setPlace('Oslo')")
            if client == "tanstack":
                await page.get_by_role("button", name="Run locate").click()
            await expect(page.get_by_test_id("assistant").last).to_contain_text("You are in Oslo.")
            await expect(page.get_by_test_id("user")).to_have_text("locate")
            assert await page.evaluate("() => calls") == [{"exact": True}]
            assert await server.written() == (1, 1)
