"""Tests of the schedules on the page."""

import re

from playwright.async_api import Browser, Locator, expect

from tests.browser.browser_tab import Tab, tab
from tests.browser.conftest import Serve
from tests.browser.test_accessibility import PHONE, violations
from tests.serving import Served, saying


async def pick(page: Tab, row: Locator, action: str) -> None:
    await row.get_by_test_id("schedule-menu").click()
    await page.part(f"schedule-{action}").click()


async def stored(server: Served) -> list[dict[str, object]]:
    return (await server.http.get("/v1/schedules")).json()["schedules"]


async def test_schedule_is_added_paused_resumed_and_deleted(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Hi.")) as server, tab(browser, server.url, timezone_id="Europe/Berlin") as page:
        await page.part("schedules-open").click()
        await expect(page.part("schedules")).to_contain_text("A schedule sends a message at set times")
        await page.part("schedule-new").click()
        await page.part("schedule-message").fill("What is new?")
        await page.part("schedule-kind").select_option("weekdays")
        await page.part("schedule-time").fill("08:30")
        await page.part("schedule-save").click()
        row = page.part("schedule")
        await expect(row).to_contain_text("Monday to Friday at 08:30")
        await expect(row).to_contain_text(re.compile(r"Next: .*08:30"))
        (added,) = await stored(server)
        assert (added["message"], added["cron"], added["timezone"]) == (
            "What is new?",
            "30 8 * * 1-5",
            "Europe/Berlin",
        )
        await pick(page, row, "pause")
        await expect(page.part("schedule-next")).to_have_text("Paused")
        assert [each["paused"] for each in await stored(server)] == [True]
        await pick(page, row, "resume")
        await expect(page.part("schedule-next")).to_have_text(re.compile("Next:"))
        await pick(page, row, "delete")
        await expect(row).to_have_count(0)
        assert await stored(server) == []


async def test_schedule_that_ran_opens_its_conversation(browser: Browser, serve: Serve) -> None:
    async with serve(saying("It is done.")) as server, tab(browser, server.url) as page:
        await page.part("schedules-open").click()
        await page.part("schedule-new").click()
        await page.part("schedule-message").fill("Is it done?")
        await page.part("schedule-kind").select_option("once")
        await page.part("schedule-at").fill("2020-01-01T09:00")
        await page.part("schedule-save").click()
        # A time that is over is run at once; the panel shows it without a reload.
        await page.part("schedule-last").click()
        await expect(page.answer).to_have_text("It is done.")
        await expect(page.part("sessions").get_by_role("link")).to_have_text(["Is it done?"])


async def test_schedule_continues_the_open_conversation(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Hi.")) as server, tab(browser, server.url) as page:
        await page.ask("Hello")
        await page.ended()
        await page.part("schedules-open").click()
        await page.part("schedule-new").click()
        await page.part("schedule-message").fill("And now?")
        await page.part("schedule-kind").select_option("interval")
        await page.part("schedule-minutes").fill("90")
        await page.part("schedule-here").check()
        await page.part("schedule-save").click()
        await expect(page.part("schedule")).to_contain_text("Every 90 minutes · in one conversation")
        (added,) = await stored(server)
        turn = (await server.http.get(f"/v1/turns/{await page.turn_id()}")).json()
        assert (added["every"], added["session_id"]) == (5400, turn["session_id"])


async def test_refused_schedule_stays_in_the_form_with_the_reason(browser: Browser, serve: Serve) -> None:
    async with serve(saying("Hi.")) as server, tab(browser, server.url, **PHONE) as page:
        await page.part("menu").click()
        await page.part("schedules-open").click()
        await page.part("schedule-new").click()
        await page.part("schedule-message").fill("Never")
        await page.part("schedule-kind").select_option("cron")
        await page.part("schedule-cron").fill("61 * * * *")
        await page.part("schedule-save").click()
        await expect(page.part("schedule-form").get_by_role("alert")).to_contain_text("cron: ")
        await expect(page.part("schedule-message")).to_have_value("Never")
        assert await violations(page) == []
        await page.part("schedule-cron").fill("0 9 1 * *")
        await page.part("schedule-save").click()
        await expect(page.part("schedule")).to_contain_text("0 9 1 * *")
        assert await violations(page) == []
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await page.page.evaluate(wide)
