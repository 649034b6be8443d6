"""The brand of the page in a browser: name, logo, accent colour, welcome and starters, under the page's policy."""

from pathlib import Path

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from tests.serving import Puppet

LOGO = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle cx="4" cy="4" r="4" fill="#c00"/></svg>'


async def test_brand_is_shown(browser: Browser, serve: Serve, puppet: Puppet, tmp_path: Path) -> None:
    logo = tmp_path / "logo.svg"
    logo.write_text(LOGO)
    brand = {"brand_logo": logo, "brand_colour": "#aa0044", "brand_welcome": "Ask <b>Acme</b>"}
    starters = ["When do you open?", "<i>Where</i> are you?"]
    async with (
        serve(brand_name="Acme & Co", brand_starters=starters, **brand) as server,
        tab(browser, server.url, color_scheme="light") as page,
    ):
        await expect(page.page).to_have_title("Acme & Co")
        await expect(page.page.locator(".brand")).to_have_text("Acme & Co")
        await expect(page.part("welcome").locator("h1")).to_have_text("Ask <b>Acme</b>")
        await expect(page.part("example")).to_have_text(starters)
        picture = page.page.locator(".brand img.logo")
        assert await picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth > 0; }")
        accent = "getComputedStyle(document.querySelector('.brand img')).getPropertyValue('--accent')"
        assert "#aa0044" in await page.page.evaluate(accent)
        await page.part("example").first.click()
        part = await puppet.part()
        assert part.turn.message == starters[0]
        part.end()
        await page.ended()
