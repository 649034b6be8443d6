"""Tests of `@turnwire/react` with React 19 in a browser, on a page of another origin, over a network that is cut."""

import random
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.browser_tab import PATIENCE_MS
from tests.browser.conftest import Serve
from tests.browser.test_origins import page_elsewhere
from tests.clients.scenes import TwoWayAgent, play
from tests.node_packages import CLIENTS, built
from tests.server.cutting_proxy import cutting
from tests.serving import Puppet, within
from turnwire.core.log.turns import Turn


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the test page as one script."""
    file = tmp_path_factory.mktemp("page") / "page.js"
    command = [built("react"), "build.mjs", "--page", str(file)]
    subprocess.run(command, cwd=CLIENTS / "react", check=True, timeout=120)
    return file.read_text()


@asynccontextmanager
async def empty_page(browser: Browser, program: str) -> AsyncIterator[tuple[Page, str]]:
    """Open a page of another origin with the script; fail if the page has thrown anything."""
    errors: list[str] = []
    async with page_elsewhere(browser) as (page, origin):
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.add_script_tag(content=program, type="module")
        await page.wait_for_function("() => window.openChat")
        yield page, origin
        assert errors == []


async def send(page: Page, message: str) -> None:
    await page.get_by_label("Message").fill(message)
    await page.get_by_role("button", name="Send").click()


async def open_chat(page: Page, url: str, session_id: str = "chat", *, has_tools: bool = False) -> None:
    await page.evaluate("([url, id, hasTools]) => openChat(url, id, hasTools)", [url, session_id, has_tools])


async def test_session_is_live_and_shows_turns_of_other_clients(
    browser: Browser, program: str, serve: Serve, puppet: Puppet
) -> None:
    async with empty_page(browser, program) as (page, origin), serve(allowed_origins=[origin]) as server:
        await open_chat(page, server.url)
        await send(page, "Hello")
        part = await puppet.part()
        part.say("On ")
        # Each piece is shown before the next one is sent.
        await expect(page.get_by_test_id("answer")).to_have_text("On ")
        await expect(page.get_by_test_id("chat")).to_have_attribute("data-busy", "true")
        part.say("Friday.")
        part.end()
        await expect(page.get_by_test_id("turn")).to_have_attribute("data-outcome", "completed")
        await expect(page.get_by_test_id("answer")).to_have_text("On Friday.")
        await expect(page.get_by_test_id("chat")).to_have_attribute("data-busy", "false")
        turn_id = await server.start("From elsewhere", session_id="chat")
        part = await puppet.part()
        part.say("Hi")
        await expect(page.get_by_test_id("message").nth(1)).to_have_text("From elsewhere")
        await page.get_by_role("button", name="Stop").click()
        await within(part.over.wait())
        await expect(page.get_by_test_id("turn").nth(1)).to_have_attribute("data-outcome", "cancelled")
        assert (await server.snapshot(turn_id))["outcome"] == "cancelled"
        # Strict mode mounts twice, and a message still starts one turn.
        assert await server.written() == (1, 2)


async def test_component_that_returns_shows_what_happened_meanwhile(
    browser: Browser, program: str, serve: Serve, puppet: Puppet
) -> None:
    async with empty_page(browser, program) as (page, origin), serve(allowed_origins=[origin]) as server:
        await open_chat(page, server.url)
        await send(page, "Hello")
        part = await puppet.part()
        part.say("One ")
        await expect(page.get_by_test_id("answer")).to_have_text("One ")
        await page.get_by_role("button", name="Leave").click()
        await expect(page.get_by_test_id("chat")).to_have_count(0)
        part.say("two ")
        await page.get_by_role("button", name="Return").click()
        await expect(page.get_by_test_id("answer")).to_have_text("One two ")
        part.say("three.")
        part.end()
        await expect(page.get_by_test_id("answer")).to_have_text("One two three.")


async def test_approvals_are_decided_and_turns_are_rated(browser: Browser, program: str, serve: Serve) -> None:
    async with empty_page(browser, program) as (page, origin), serve(play, allowed_origins=[origin]) as server:
        await open_chat(page, server.url)
        for decision, text in (("Approve", "Paid."), ("Deny", "too much")):
            await send(page, "pay")
            await expect(page.get_by_test_id("approval")).to_contain_text('pay {"amount":40}')
            await page.get_by_role("button", name=decision).click()
            await expect(page.get_by_test_id("turn").last).to_have_attribute("data-outcome", "completed")
            await expect(page.get_by_test_id("answer").last).to_contain_text(text)
            await expect(page.get_by_test_id("approval")).to_have_count(0)
        await page.get_by_role("button", name="Watch").first.click()
        watched = page.get_by_test_id("watched")
        await expect(watched).to_have_attribute("data-outcome", "completed")
        await expect(watched).to_contain_text("Paid.")
        await page.get_by_role("button", name="Good").click()
        turn_id = await page.get_by_test_id("turn").first.get_attribute("data-turn-id")
        await page.wait_for_function(
            "async (url) => (await (await fetch(url)).json()).feedback?.note === 'good'",
            arg=f"{server.url}/v1/turns/{turn_id}",
        )


async def test_tool_of_the_last_render_is_run(browser: Browser, program: str, serve: Serve) -> None:
    async with empty_page(browser, program) as (page, origin), serve(TwoWayAgent(), allowed_origins=[origin]) as server:
        await open_chat(page, server.url, has_tools=True)
        for place in ("Bern", "Basel"):
            await page.get_by_label("Place").fill(place)
            await send(page, "locate")
            await expect(page.get_by_test_id("answer").last).to_have_text(f"Wait. You are in {place}.")


async def words(turn: Turn) -> AsyncIterator[Any]:
    for number in range(int(turn.message)):
        yield f"{number} "


async def test_cut_network_loses_and_doubles_nothing(browser: Browser, program: str, serve: Serve) -> None:
    seed = random.randrange(1_000_000)
    print(f"the network is cut with the seed {seed}")
    chance = random.Random(seed)
    async with (
        empty_page(browser, program) as (page, origin),
        serve(words, allowed_origins=[origin]) as server,
        cutting(server, lambda: chance.randrange(900, 6_000)) as (client, cutter),
    ):
        await open_chat(page, client.url)
        for count in ("300", "100"):
            await send(page, count)
        turns = page.get_by_test_id("turn")
        for index, count in enumerate((300, 100)):
            await expect(turns.nth(index)).to_have_attribute("data-outcome", "completed", timeout=60_000)
            expected = "".join(f"{number} " for number in range(count))
            assert await turns.nth(index).get_by_test_id("answer").text_content() == expected
        assert await server.written() == (1, 2)
        assert cutter.cuts > 3
        await expect(page.get_by_test_id("connection")).to_have_text("online")
        # Events of one chunk are drawn together; strict mode renders twice, so one by one they would be over 800.
        assert await page.evaluate("window.renders") < 800


async def test_unknown_session_of_the_server_is_an_error(browser: Browser, program: str, serve: Serve) -> None:
    gone = "01890000-0000-7000-8000-000000000000"
    async with empty_page(browser, program) as (page, origin), serve(play, allowed_origins=[origin]) as server:
        await open_chat(page, server.url, gone)
        await expect(page.get_by_role("alert")).to_contain_text("session")
        assert await server.written() == (0, 0)
