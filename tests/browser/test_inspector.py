"""The turn inspector: a turn's log as a picture, live or finished, and what a reader saw at any position of it."""

import json
from pathlib import Path

from playwright.async_api import Browser, expect

from tests.browser.conftest import Serve
from tests.browser.browser_tab import tab
from tests.serving import Puppet
from turnwire.core.events import ToolCallEvent, ToolResultEvent


async def test_a_turn_is_inspected_while_it_runs_and_afterwards(
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
            # Live: what happens now is there now.
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
            # Back to an earlier position: what was seen then, and no more.
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


async def test_a_turn_that_is_not_there_or_not_ones_own_is_told(browser: Browser, serve: Serve) -> None:
    async with serve() as server, tab(browser, server.url, "/turns/nothing") as page:
        await expect(page.page.get_by_role("alert")).to_be_visible()
        _, text = await server.turnwire.keys.create("anna", ("read",))
        await page.page.reload()
        await page.part("key").fill(text)
        await page.part("key").press("Enter")
        await expect(page.page.get_by_role("alert")).to_be_visible()
        await expect(page.part("key")).to_be_hidden()
