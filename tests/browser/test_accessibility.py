"""Tests of the page with the keyboard, a screen reader, a phone and a dark theme."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.browser.browser_tab import Tab, tab
from tests.browser.conftest import Serve
from tests.server.test_approvals import careful
from tests.serving import Puppet, Served, quick_settings, ready, serving, within
from turnwire import Turnwire
from turnwire.agents.demo import DemoAgent
from turnwire.core.log.events import ReviewEvent, SearchEvent, ToolCallEvent

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
PHONE: Any = {"viewport": {"width": 400, "height": 800}, "has_touch": True, "is_mobile": True}
WIDE = (
    """
| one | two | three | four | five | six | seven | eight | nine | ten |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 1111111111 | 2222222222 | 3333333333 | 4444444444 | 5555555555 | 6 | 7 | 8 | 9 | 10 |

```python
print("a line of code that is a good deal wider than any telephone that was ever carried around in a pocket, and so on")
```

Averyveryverylongwordthatnobodywouldeverwritebutsomemodelsdoallthesame"""
    + "x" * 120
)


async def has_focus(locator: Locator) -> bool:
    return await locator.evaluate("node => node === document.activeElement || node.contains(document.activeElement)")


async def tab_to(page: Tab, locator: Locator, *, key: str = "Tab", limit: int = 60) -> None:
    """Press `key` until the element has a visible focus."""
    for _ in range(limit):
        if await has_focus(locator):
            outline = "node => getComputedStyle(document.activeElement).outlineStyle !== 'none'"
            shadow = "node => getComputedStyle(document.activeElement).boxShadow !== 'none'"
            border = "node => document.activeElement.matches(':focus-visible')"
            assert await locator.evaluate(border)
            assert await locator.evaluate(outline) or await locator.evaluate(shadow)
            return
        await page.page.keyboard.press(key)
    raise AssertionError(f"the keyboard does not reach {locator}")


async def settled(server: Served) -> None:
    await within(ready(server.turnwire))


async def violations(page: Tab) -> list[str]:
    """Return the serious and critical violations that axe finds once nothing is loading."""
    await expect(page.page.locator(".skeleton")).to_have_count(0)
    await page.page.evaluate(AXE)
    report = await page.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    severe = [violation for violation in report["violations"] if violation["impact"] in ("serious", "critical")]
    return [
        f"{violation['id']}: {violation['help']} at {[node['html'][:200] for node in violation['nodes']]}"
        for violation in severe
    ]


async def test_keyboard_alone_reaches_every_function(browser: Browser, serve: Serve, shelf: Path) -> None:
    async with serve(docs=[shelf]) as server, tab(browser, server.url) as page:
        await settled(server)
        keyboard = page.page.keyboard
        await expect(page.part("composer")).to_be_focused()
        await keyboard.type("When does the ferry to Norderney leave?")
        await keyboard.press("Enter")
        await page.ended()
        await expect(page.part("composer")).to_be_focused()
        chip = page.answer.locator("[data-cite]").first
        await tab_to(page, chip, key="Shift+Tab")
        await expect(page.part("peek")).to_be_visible()
        await keyboard.press("Enter")
        await expect(page.part("source").locator("mark").first).to_be_visible()
        assert await has_focus(page.part("source"))
        await keyboard.press("Escape")
        await expect(page.part("source")).to_be_hidden()
        # The focus returns to the citation.
        await expect(chip).to_be_focused()
        await tab_to(page, page.part("retry"))
        await keyboard.press("Enter")
        await expect(page.part("version")).to_be_visible()
        await page.ended()
        await tab_to(page, page.part("steps").get_by_role("button").first, key="Shift+Tab")
        await keyboard.press("Enter")
        await expect(page.part("step-search").first).to_be_visible()
        await tab_to(page, page.part("new"), key="Shift+Tab")
        await keyboard.press("Enter")
        await expect(page.part("turn")).to_have_count(0)
        await expect(page.part("composer")).to_be_focused()


async def test_keyboard_stops_and_approves(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve(agents={"puppet": puppet, "careful": careful}) as server, tab(browser, server.url) as page:
        keyboard = page.page.keyboard
        await expect(page.part("composer")).to_be_focused()
        await keyboard.type("Count")
        # An input method confirms a word with Enter, which must not send the message.
        await page.part("composer").dispatch_event("keydown", {"key": "Enter", "keyCode": 229, "isComposing": True})
        await expect(page.part("turn")).to_have_count(0)
        await keyboard.press("Enter")
        part = await puppet.part()
        part.say("One, ")
        await expect(page.answer).to_have_text("One,")
        await tab_to(page, page.part("stop"))
        await keyboard.press("Enter")
        await page.ended("cancelled")
        await page.part("agent").select_option("careful")
        await page.part("composer").focus()
        await keyboard.type("Buy it")
        await keyboard.press("Enter")
        await expect(page.part("approval")).to_be_visible()
        await tab_to(page, page.part("approve"), key="Shift+Tab")
        await keyboard.press("Enter")
        await expect(page.answer).to_have_text("May I? Paid.")


async def test_screen_reader_gets_one_status_line_and_no_tokens(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("When does it leave?")
        part = await puppet.part()
        status = page.part("status")
        await expect(status).to_have_attribute("role", "status")
        part.say(SearchEvent("s1", "started", tool="search", query="ferry"))
        await expect(status).to_have_text("Searching")
        part.say("At nine")
        await expect(page.answer).to_have_text("At nine")
        live = "node => node.closest('[aria-live=polite],[aria-live=assertive],[role=status],[role=alert]') === null"
        assert await page.answer.evaluate(live)
        await expect(page.part("transcript")).to_have_attribute("aria-live", "off")
        part.end()
        await expect(status).to_have_text("Answer complete")


@pytest.mark.rotated("scheme")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_violation(
    browser: Browser, serve: Serve, shelf: Path, scheme: Any, puppet: Puppet
) -> None:
    agents = {"puppet": puppet, "careful": careful}
    async with serve(docs=[shelf], agents=agents) as server, tab(browser, server.url, color_scheme=scheme) as page:
        await settled(server)
        assert await violations(page) == []
        await page.ask("Show me everything")
        part = await puppet.part()
        part.say(SearchEvent("s1", "started", tool="search", query="ferry"))
        part.say(SearchEvent("s1", "finished", tool="search", query="ferry", hits=(), ms=3))
        part.say(ReviewEvent("r1", iteration=1, verdict="rejected", feedback="not yet", missing=("times",)))
        part.say(ToolCallEvent("c1", "timetable", {"harbour": "Norddeich"}))
        part.say("# Heading\n\nSome *text* with [a link](https://example.org) and `code`.\n", WIDE)
        await expect(page.answer.locator("table")).to_be_visible()
        assert await violations(page) == []
        part.end()
        await page.ended()
        await page.part("agent").select_option("careful")
        await page.ask("Buy it")
        await expect(page.part("approval")).to_be_visible()
        assert await violations(page) == []
        await page.part("agent").select_option("documents")
        await page.part("new").click()
        await page.ask("When does the ferry to Norderney leave?")
        await page.ended()
        await page.part("steps").get_by_role("button").first.click()
        await page.answer.locator("[data-cite]").first.click()
        await expect(page.part("source").locator("mark").first).to_be_visible()
        assert await violations(page) == []
        await page.page.goto(f"{server.url}/turns/{await page.turn_id()}")
        await expect(page.page.get_by_role("main")).to_be_visible()
        assert await violations(page) == []
        await server.turnwire.keys.create("anna", ("read",))
        await page.page.goto(server.url)
        await expect(page.part("login")).to_be_visible()
        assert await violations(page) == []


@pytest.mark.rotated("scheme")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_serious_violation_in_the_demo(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    turnwire = Turnwire(store="memory", settings=quick_settings(tmp_path), demo="last")
    turnwire.agents["demo"] = DemoAgent(pace=0)
    async with serving(turnwire) as server:
        await settled(server)
        async with tab(browser, server.url, color_scheme=scheme) as page:
            await expect(page.part("deed")).to_have_count(3)
            assert await violations(page) == []
            await page.part("deed").first.click()
            await expect(page.part("approval")).to_be_visible()
            assert await violations(page) == []
            await page.part("approve").click()
            await page.ended()
            await expect(page.answer.locator(".hljs-keyword").first).to_be_visible()
            await page.part("title-menu").click()
            await expect(page.part("export-json")).to_be_visible()
            assert await violations(page) == []


async def test_phone_layout_fits_the_screen(browser: Browser, serve: Serve, shelf: Path, puppet: Puppet) -> None:
    async def fits() -> bool:
        return await page.page.evaluate(
            "document.scrollingElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth"
        )

    async with (
        serve(docs=[shelf], agents={"puppet": puppet}) as server,
        tab(browser, server.url, **PHONE) as page,
    ):
        await settled(server)
        assert await fits()
        await page.ask("Something wide")
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "timetable", {"harbour": "N" * 200}))
        part.say(WIDE)
        await expect(page.answer.locator("table")).to_be_attached()
        assert await fits()
        await expect(page.part("stop")).to_be_in_viewport()
        # There is room for one choice beside the button.
        await expect(page.part("on-busy")).to_be_in_viewport()
        await expect(page.part("agent")).to_be_hidden()
        await page.part("stop").tap()
        await page.ended("cancelled")
        await expect(page.part("agent")).to_be_visible()
        await expect(page.part("composer")).to_be_in_viewport()
        await page.part("menu").tap()
        await expect(page.part("new")).to_be_in_viewport()
        assert await fits()
        await page.part("new").tap()
        await page.part("agent").select_option("documents")
        await page.ask("When does the ferry to Norderney leave?")
        await page.ended()
        chip = page.answer.locator("[data-cite]").first
        await chip.tap()
        # Either the card or the document opens.
        await expect(page.part("peek").or_(page.part("source")).first).to_be_in_viewport()
        if await page.part("source").count() == 0:
            await page.part("peek-open").tap()
        await expect(page.part("source").locator("mark").first).to_be_in_viewport()
        assert await fits()
        assert await violations(page) == []
        await page.part("source-close").tap()
        await expect(page.part("composer")).to_be_in_viewport()
        await page.page.goto(f"{server.url}/turns/{await page.turn_id()}")
        await expect(page.page.get_by_role("main")).to_be_visible()
        assert await fits()


async def test_scrolled_up_transcript_keeps_its_position(browser: Browser, serve: Serve, puppet: Puppet) -> None:
    async def distance() -> float:
        """Return the distance from the viewport to the end."""
        return await page.part("scroller").evaluate("node => node.scrollHeight - node.scrollTop - node.clientHeight")

    async with serve() as server, tab(browser, server.url) as page:
        await page.ask("Tell me a long story")
        part = await puppet.part()
        part.say(*[f"Paragraph {number}.\n\n" for number in range(60)])
        await expect(page.answer).to_contain_text("Paragraph 59.")
        assert await distance() < 60
        await page.part("scroller").hover()
        await page.page.mouse.wheel(0, -600)
        await expect(page.part("latest")).to_be_visible()
        top = await page.part("scroller").evaluate("node => node.scrollTop")
        part.say(*[f"Paragraph {number}.\n\n" for number in range(60, 80)])
        await expect(page.answer).to_contain_text("Paragraph 79.")
        assert await page.part("scroller").evaluate("node => node.scrollTop") == top
        await page.part("latest").click()
        part.say("The end.")
        await expect(page.answer.get_by_text("The end.")).to_be_in_viewport()
        part.end()
