"""Take the pictures of the README: a real server, its real page, a real browser. Run it in the development environment:

python clients/web/pictures/take.py
"""

import asyncio
import base64
import os
import sys
import tempfile
from pathlib import Path

from playwright.async_api import ViewportSize, async_playwright, expect

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from bench.browser import find_browser  # noqa: E402
from tests.serving import serving  # noqa: E402
from turnwire import Settings, Turnwire  # noqa: E402

QUESTION = "What happens when the process is killed?"
SIZE = ViewportSize(width=1280, height=800)


async def take(data: Path) -> None:
    turnwire = Turnwire(settings=Settings(data=data))
    async with serving(turnwire) as server, async_playwright() as driver:
        assert turnwire.librarian is not None
        await turnwire.librarian.settled()
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await driver.chromium.launch(executable_path=find_browser(), args=arguments)
        for scheme in ("light", "dark"):
            page = await browser.new_page(viewport=SIZE, device_scale_factor=1.5, color_scheme=scheme)
            await page.goto(server.url)
            await page.get_by_test_id("composer").fill(QUESTION)
            await page.get_by_test_id("send").click()
            await expect(page.get_by_test_id("turn").last).to_have_attribute(
                "data-outcome", "completed", timeout=30_000
            )
            await page.get_by_test_id("sources").get_by_role("button").first.click()
            await expect(page.locator("mark").first).to_be_in_viewport()
            # Playwright itself writes no WebP, which is a quarter of a PNG.
            session = await page.context.new_cdp_session(page)
            picture = await session.send("Page.captureScreenshot", {"format": "webp", "quality": 85})
            (HERE / f"page-{scheme}.webp").write_bytes(base64.b64decode(picture["data"]))
            await page.close()
        await browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(take(Path(folder)))
