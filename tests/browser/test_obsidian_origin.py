"""Tests of the Obsidian plugin in a browser at the origins of Obsidian's apps."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.browser.browser_tab import PATIENCE_MS, new_context
from tests.clients.conftest import node
from tests.clients.test_obsidian import plugin
from tests.serving import PATIENCE, Puppet, Served, quick_settings, serving, within
from tests.vaults import vault
from turnwire import Turnwire
from turnwire.core.log.events import ToolCallEvent, ToolResultEvent

__all__ = ["node", "plugin", "vault"]

ANDROID = "http://localhost"
"""The only one of Obsidian's origins that a browser page can have."""
STRANGER = "http://localhost:8080"


@pytest.fixture(scope="session")
def program(node: str, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the plugin and a mock of Obsidian as one script."""
    file = tmp_path_factory.mktemp("page") / "page.js"
    subprocess.run([node, "tests/build-page.mjs", str(file)], cwd=plugin, check=True, timeout=240)
    return file.read_text()


def serving_puppet(vault: Path, puppet: Puppet) -> AbstractAsyncContextManager[Served]:
    settings = quick_settings(vault.parent / "data", documents={"vault": vault})
    return serving(Turnwire(agents={"puppet": puppet}, store="memory", settings=settings))


@asynccontextmanager
async def pane(browser: Browser, origin: str, program: str, server: Served) -> AsyncIterator[Page]:
    """Open the plugin's pane in an empty page at an origin."""
    context = await new_context(browser)
    # The browser treats the fulfilled page as a public one, which needs permission to call this machine.
    await context.grant_permissions(["local-network-access"], origin=origin)
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)

    async def show(route: Route) -> None:
        await route.fulfill(body="<!doctype html><title>Obsidian</title><body>", content_type="text/html")

    async def ask_without_origin(query: dict[str, Any]) -> dict[str, Any]:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=PATIENCE) as client:
            response = await client.request(
                query["method"], query["url"], headers=query["headers"], content=query.get("body", "")
            )
        return {"status": response.status_code, "headers": dict(response.headers), "text": response.text}

    await page.route(f"{origin}/", show)
    await page.expose_function("askWithoutOrigin", ask_without_origin)
    try:
        await page.goto(f"{origin}/")
        await page.add_script_tag(content=program)
        await page.evaluate("([url, agent]) => openPane(url, agent)", [server.url, "puppet"])
        yield page
    finally:
        await context.close()


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_plugin_streams_from_an_allowed_origin(
    browser: Browser, program: str, vault: Path, puppet: Puppet
) -> None:
    async with serving_puppet(vault, puppet) as server, pane(browser, ANDROID, program, server) as page:
        assert await page.evaluate("location.origin") == ANDROID
        await expect(page.locator(".turnwire-notice")).to_be_empty()
        await ask(page, "When?")
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "search_vault", {"query": "rocket"}))
        await expect(page.get_by_role("status")).to_have_text("Searching the vault for “rocket”")
        part.say(ToolResultEvent("c1", "search_vault", True, "found"), "On ")
        # Each piece is shown before the next one is sent.
        answer = page.locator(".turnwire-answer")
        await expect(answer).to_have_text("On ")
        part.say("Friday.")
        await expect(answer).to_have_text("On Friday.")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("Stopped.")).to_be_visible()
        await within(part.over.wait())


async def test_plugin_at_a_forbidden_origin_warns_and_polls(
    browser: Browser, program: str, vault: Path, puppet: Puppet
) -> None:
    async with serving_puppet(vault, puppet) as server, pane(browser, STRANGER, program, server) as page:
        await expect(page.locator(".turnwire-notice")).to_contain_text("Obsidian cannot stream from this server")
        await ask(page, "When?")
        part = await puppet.part()
        part.say("On ")
        await expect(page.locator(".turnwire-answer")).to_have_text("On ")
        part.say("Friday.")
        part.end()
        await expect(page.locator(".turnwire-answer")).to_have_text("On Friday.")
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
