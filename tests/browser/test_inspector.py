"""Tests of the turn inspector: a turn's timeline, live or finished, and the view at any position."""

import json
from pathlib import Path

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from tests.serving import Puppet
from turnwire.core.events import ToolCallEvent, ToolResultEvent


async def test_inspector_shows_a_turn_live_and_finished(
    browser: Browser, serve: Serve, puppet: Puppet, tmp_path: Path
) -> None:
    async with serve() as server:
        turn_id = await server.start("When does it leave?")
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "timetable", {"harbour": "Norddeich"}), "It leaves ")
        async with tab(browser, server.url, f"/turns/{turn_id}") as page:
            await expect(page.part("asked")).to_have_text("When does it leave?")
            await expect(page.part("picture")).to_contain_text("timetable")
            await expect(page.part("seen")).to_contain_text("It leaves")
            # The inspector follows the running turn.
            part.say(ToolResultEvent("c1", "timetable", True, "09:00", 5), "at nine.")
            await expect(page.part("seen")).to_contain_text("It leaves at nine.")
            part.end()
            facts = page.part("facts")
            await expect(facts).to_contain_text("Done")
            await expect(facts).to_contain_text("First token")
            await expect(page.part("picture")).to_contain_text("first token")
            # session, message, tool_call, token, tool_result, token, response, done
            await expect(page.part("position")).to_have_text("8 / 8")
            kinds = await page.part("events").locator("[data-type]").all_inner_texts()
            assert kinds == ["session", "message", "tool_call", "token", "tool_result", "token", "response", "done"]
            # An earlier position shows only the text up to it.
            await page.part("scrubber").fill("4")
            await expect(page.part("position")).to_have_text("4 / 8")
            await expect(page.part("seen")).to_contain_text("It leaves")
            await expect(page.part("seen")).not_to_contain_text("at nine")
            await page.part("scrubber").press("ArrowLeft")
            await expect(page.part("seen")).not_to_contain_text("It leaves")
            await page.part("events").get_by_role("button").nth(5).click()
            await expect(page.part("seen")).to_contain_text("It leaves at nine.")
            async with page.page.expect_download() as begun:
                await page.part("download").click()
            await (await begun.value).save_as(tmp_path / "log.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [line["event"]["type"] for line in lines] == kinds
        assert [line["position"] for line in lines] == list(range(1, 9))


async def test_missing_or_foreign_turn_shows_an_alert(browser: Browser, serve: Serve) -> None:
    async with serve() as server, tab(browser, server.url, "/turns/nothing") as page:
        await expect(page.page.get_by_role("alert")).to_be_visible()
        _, text = await server.turnwire.keys.create("anna", ("read",))
        await page.page.reload()
        await page.part("key").fill(text)
        await page.part("key").press("Enter")
        await expect(page.page.get_by_role("alert")).to_be_visible()
        await expect(page.part("key")).to_be_hidden()
