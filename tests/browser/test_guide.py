"""Tests of the documentation site in a real browser: its policy, its search, its menu on a phone, its accessibility."""

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from tests.browser.test_accessibility import violations

PHONE = {"width": 390, "height": 844}


async def test_pages_are_read_by_following_links(browser: Browser, serve: Serve) -> None:
    async with serve() as server, tab(browser, server.url, "/guide") as page:
        await page.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Concepts").click()
        await expect(page.page.get_by_role("heading", level=1)).to_have_text("Concepts")
        await page.page.get_by_role("link", name="reference/events.md").click()
        await expect(page.page).to_have_url(f"{server.url}/guide/reference/events.html")
        await page.page.goto(f"{server.url}/guide/architecture.html")
        picture = page.page.locator("article img")
        assert await picture.evaluate("node => node.complete && node.naturalWidth > 0")


async def test_search_opens_the_section_that_was_chosen_with_the_keyboard(browser: Browser, serve: Serve) -> None:
    async with serve() as server, tab(browser, server.url, "/guide/guides/page.html") as page:
        await page.page.keyboard.press("/")
        await page.page.keyboard.type("logging in")
        results = page.page.get_by_role("option")
        await expect(results.first).to_contain_text("Logging in")
        await page.page.keyboard.press("ArrowDown")
        await page.page.keyboard.press("ArrowUp")
        await page.page.keyboard.press("Enter")
        await expect(page.page).to_have_url(f"{server.url}/guide/guides/page.html#logging-in")
        await page.page.get_by_role("combobox").fill("xyzzyx")
        await expect(page.page.get_by_role("status")).to_have_text("Nothing found.")


async def test_phone_has_a_folded_menu_and_no_sideways_scroll(browser: Browser, serve: Serve) -> None:
    async with serve() as server, tab(browser, server.url, "/guide/reference/settings.html", viewport=PHONE) as page:
        menu = page.page.get_by_role("navigation", name="Pages")
        await expect(menu).to_be_hidden()
        await page.page.get_by_text("Pages", exact=True).click()
        await expect(menu).to_be_visible()
        assert await page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_axe_finds_no_serious_violation_on_light_and_dark_pages(browser: Browser, serve: Serve) -> None:
    async with serve() as server:
        for scheme in ("light", "dark"):
            async with tab(browser, server.url, "/guide/guides/agents.html", color_scheme=scheme) as page:
                assert await violations(page) == []
