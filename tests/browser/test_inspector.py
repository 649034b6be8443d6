"""Tests of the inspector: the list of turns, a turn's timeline, steps and log, and two turns side by side."""

import json
from pathlib import Path

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from tests.browser.test_accessibility import violations
from tests.clients.scenes import play
from tests.serving import Puppet, Served, ready, within
from turnwire.core.log.events import (
    Event,
    ReasoningEvent,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)


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


SUPERVISED = (
    ReasoningEvent("The crew knows."),
    UsageEvent("big", input_tokens=1_000_000, output_tokens=100_000),
    ToolCallEvent("c1", "ask_crew", {"question": "When does it leave?"}),
    ToolCallEvent("c2", "timetable", {"harbour": "Norddeich"}, agent_path=("crew",)),
    ToolResultEvent("c2", "timetable", True, "09:00", 5, agent_path=("crew",)),
    TokenEvent("At nine.", agent_path=("crew",)),
    ToolResultEvent("c1", "ask_crew", True, "At nine.", 5),
    "It leaves ",
    "at nine.",
    UsageEvent("big", input_tokens=500_000, output_tokens=0),
)
"""An answer with two model calls and a sub-agent that uses a tool."""


async def answered(server: Served, puppet: Puppet, message: str, *events: Event | str) -> str:
    """Return the id of a turn that has ended with these events."""
    turn_id = await server.start(message)
    part = await puppet.part()
    part.say(*(events or ("Yes.",)))
    part.end()
    await server.ended(turn_id)
    return turn_id


async def test_steps_are_a_tree_and_show_their_input_and_output(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve(model_prices={"big": {"input": 2, "output": 8}}) as server:
        turn_id = await answered(server, puppet, "When?", *SUPERVISED)
        async with tab(browser, server.url, f"/turns/{turn_id}") as page:
            bars = page.part("step-bar")
            await expect(bars).to_have_count(6)
            kinds = [await bar.get_attribute("data-kind") for bar in await bars.all()]
            assert kinds == ["model", "reasoning", "tool", "agent", "tool", "model"]
            await bars.nth(4).click()
            await expect(page.part("step-panel")).to_contain_text("crew › timetable")
            await expect(page.part("step-input")).to_contain_text("Norddeich")
            await expect(page.part("step-output")).to_contain_text("09:00")
            # The answer is shown as of the end of the step.
            await expect(page.part("position")).to_have_text("7 / 14")
            await bars.nth(0).click()
            await expect(page.part("step-panel")).to_contain_text("1,000,000 tokens in")
            await expect(page.part("step-panel")).to_contain_text("$2.80")
            await expect(page.part("step-input")).to_contain_text("When?")
            await expect(page.part("step-output")).to_contain_text("The crew knows.")
            await expect(page.part("step-output")).to_contain_text("Call of ask_crew")
            # With the keyboard, and away again.
            await bars.nth(3).focus()
            await page.page.keyboard.press("Enter")
            await expect(page.part("step-output")).to_contain_text("At nine.")
            await page.page.keyboard.press("Enter")
            await expect(page.part("step-panel")).to_be_hidden()
            facts = page.part("facts")
            await expect(facts).to_contain_text("2 pieces")
            await expect(facts).to_contain_text("1,500,000 in, 100,000 out")
            await expect(facts).to_contain_text("$3.80")
            assert not await violations(page)


async def test_names_of_events_fit_their_column(browser: Browser, serve: Serve) -> None:
    async with serve(play) as server:
        turn_id = (await server.http.post("/chat", json={"message": "pay"})).json()["turn_id"]
        await server.http.post(f"/v1/turns/{turn_id}/approvals/c1", json={"approved": True})
        await server.ended(turn_id)
        for width in (1280, 390):
            viewport = {"width": width, "height": 800}
            async with tab(browser, server.url, f"/turns/{turn_id}", viewport=viewport) as page:
                if width < 400:
                    await page.part("show-log").click()
                name = page.part("events").locator(".row-type", has_text="approval_response")
                await expect(name).to_be_visible()
                assert await name.evaluate("node => node.scrollWidth <= node.clientWidth"), width


async def test_list_is_filtered_and_leads_from_turn_to_turn(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        first = await answered(server, puppet, "When does the ferry leave?")
        other = await answered(server, puppet, "And the bus?")
        last = await answered(server, puppet, "Which ferry?")
        async with tab(browser, server.url, "/turns") as page:
            links = page.part("turn-link")
            await expect(links).to_have_count(3)
            assert not await violations(page)
            await page.part("filter-search").fill("FERRY")
            await expect(links).to_have_count(2)
            await links.first.click()
            await expect(page.part("asked")).to_have_text("Which ferry?")
            # The filter stays on the way to the neighbours and back.
            await expect(page.part("next-turn")).to_have_attribute("aria-disabled", "true")
            await page.part("previous-turn").click()
            await expect(page.part("asked")).to_have_text("When does the ferry leave?")
            await page.part("next-turn").click()
            await expect(page.part("asked")).to_have_text("Which ferry?")
            await page.part("all-turns").click()
            await expect(page.part("filter-search")).to_have_value("FERRY")
            await expect(links).to_have_count(2)
            await page.part("filter-status").select_option("failed")
            await expect(page.part("no-turns")).to_be_visible()
            await page.page.go_back()
            await expect(links).to_have_count(2)
            await page.page.goto(f"{server.url}/turns/{other}")
            for name, turn_id in (("previous-turn", first), ("next-turn", last)):
                await expect(page.part(name)).to_have_attribute("href", f"{server.url}/turns/{turn_id}")


async def test_list_has_pages(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        for number in range(32):
            await answered(server, puppet, f"Question {number}?")
        async with tab(browser, server.url, "/turns") as page:
            links = page.part("turn-link")
            await expect(links).to_have_count(30)
            await expect(page.part("newer")).to_be_disabled()
            await page.part("older").click()
            await expect(links).to_have_count(2)
            await expect(links.last).to_contain_text("Question 0?")
            await expect(page.part("older")).to_be_disabled()
            await page.part("newer").click()
            await expect(links).to_have_count(30)
            await expect(links.first).to_contain_text("Question 31?")


async def test_running_turn_in_the_list_is_kept_up_to_date(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        await server.start("How long?")
        part = await puppet.part()
        async with tab(browser, server.url, "/turns") as page:
            await expect(page.part("turns")).to_contain_text("running")
            part.say("Long.")
            part.end()
            await expect(page.part("turns")).to_contain_text("Done")


async def test_two_turns_are_compared_on_one_scale(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        await answered(server, puppet, "When?", *SUPERVISED)
        await answered(server, puppet, "Why?", "Because.")
        async with tab(browser, server.url, "/turns") as page:
            await page.part("choose").nth(0).check()
            await expect(page.part("compare")).to_be_hidden()
            await page.part("choose").nth(1).check()
            await page.part("compare").click()
            turns = page.part("compared-turn")
            await expect(turns).to_have_count(2)
            await expect(turns.nth(0)).to_contain_text("Because.")
            await expect(turns.nth(1)).to_contain_text("It leaves at nine.")
            await expect(turns.nth(1).get_by_test_id("step-bar")).to_have_count(6)
            await expect(page.part("fact-table")).to_contain_text("Duration")
            await expect(page.part("compared")).to_contain_text("When?")
            assert not await violations(page)


async def test_log_is_one_tap_away_on_a_phone(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        turn_id = await answered(server, puppet, "When?", *SUPERVISED)
        phone = {"width": 390, "height": 780}
        async with tab(browser, server.url, f"/turns/{turn_id}", viewport=phone, has_touch=True) as page:
            await expect(page.part("seen")).to_be_visible()
            await expect(page.part("events")).to_be_hidden()
            await page.part("show-log").tap()
            await expect(page.part("events")).to_be_visible()
            await expect(page.part("seen")).to_be_hidden()
            assert await page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await page.page.goto(f"{server.url}/turns")
            await expect(page.part("turn-link")).to_have_count(1)
            assert await page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert not await violations(page)


async def test_missing_or_foreign_turn_has_a_page_that_leads_on(browser: Browser, serve: Serve) -> None:
    async with serve() as server, tab(browser, server.url, "/turns/nothing") as page:
        await expect(page.part("missing")).to_contain_text("Turn not found")
        await expect(page.part("missing")).to_contain_text("nothing")
        _, text = await server.turnwire.keys.create("anna", ("read",))
        await page.page.reload()
        await page.part("key").fill(text)
        await page.part("key").press("Enter")
        await expect(page.part("missing")).to_contain_text("Turn not found")
        await expect(page.part("key")).to_be_hidden()
        await page.part("missing").get_by_role("link", name="All turns").click()
        await expect(page.part("no-turns")).to_contain_text("no turns yet")


async def test_turn_is_branched_at_the_shown_position(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        turn_id = await answered(server, puppet, "When?", *SUPERVISED)
        async with tab(browser, server.url, f"/turns/{turn_id}") as page:
            await page.part("scrubber").fill("9")
            await page.part("branch-message").fill("And back?")
            await page.part("branch").click()
            part = await puppet.part()
            assert (part.turn.message, part.turn.history[0].content) == ("And back?", "When?")
            part.say("At ten.")
            part.end()
            await expect(page.part("forked")).to_contain_text("at position 9")
            await expect(page.part("seen")).to_contain_text("At ten.")
            await expect(page.part("asked")).to_have_text("And back?")
            assert not await violations(page)
            await page.part("forked").get_by_role("link").click()
            await expect(page.part("asked")).to_have_text("When?")


async def test_inspector_shows_the_part_of_each_worker(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        turn_id = await answered(server, puppet, "When?", "It leaves ", RestartEvent(2, "worker_lost"), "At nine.")
        async with tab(browser, server.url, f"/turns/{turn_id}") as page:
            await expect(page.part("facts")).to_contain_text("1: 1–3, 2: 4–7")
            await expect(page.part("seen")).to_contain_text("At nine.")


async def test_focus_returns_to_the_citation_when_its_source_is_closed(
    browser: Browser, serve: Serve, shelf: Path
) -> None:
    async with serve(docs=[shelf]) as server, tab(browser, server.url) as page:
        await within(ready(server.turnwire))
        await page.ask("When does the ferry to Norderney leave?")
        await page.ended()
        await page.page.goto(f"{server.url}/turns/{await page.turn_id()}")
        chip = page.part("seen").locator("[data-cite]").first
        await chip.click()
        await expect(page.part("source").get_by_role("heading").first).to_be_focused()
        await page.part("source-close").click()
        await expect(chip).to_be_focused()
