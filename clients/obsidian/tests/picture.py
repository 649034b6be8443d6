"""Take the picture of the README: the real pane and a real server, in a browser instead of Obsidian's window.

python clients/obsidian/tests/picture.py
"""

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Route, ViewportSize, async_playwright, expect

PLUGIN = Path(__file__).parents[1]
sys.path.insert(0, str(PLUGIN.parents[1]))

from bench.browser import find_browser  # noqa: E402
from tests.serving import serving  # noqa: E402
from turnwire import Settings, Turnwire  # noqa: E402

ORIGIN = "http://localhost"
NOTES = {
    "Projects/Moon rocket.md": "# Moon rocket\n\nThe rocket launches on Friday at noon. Ada builds the engine.\n",
    "Garden.md": "# Garden\n\nTomatoes are watered every morning.\n",
}
# The few variables of Obsidian's default theme that the pane uses.
THEME = """
body {
  margin: 0; padding: 14px; height: 452px; font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  --size-4-1: 4px; --size-4-2: 8px; --size-4-3: 12px; --size-4-4: 16px; --size-4-6: 24px;
  --radius-s: 4px; --radius-m: 8px; --font-semibold: 600; --font-ui-small: 13px; --font-ui-smaller: 12px;
  --text-muted: #5c5c5c; --text-faint: #767676; --background-secondary: #f6f6f6;
  --background-modifier-border: #e0e0e0; --background-modifier-message: #fff4d6;
}
button, textarea { font: inherit; border: 1px solid #d4d4d4; border-radius: 5px; background: #fff; }
button { padding: 4px 12px; font-size: 13px; }
textarea { width: 100%; box-sizing: border-box; padding: 8px; }
/* Obsidian's icons are not here. */
button:empty { display: none; }
"""


async def take(folder: Path) -> None:
    vault = folder / "vault"
    for name, text in NOTES.items():
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text(text)
    program = folder / "page.js"
    await asyncio.to_thread(subprocess.run, ["node", "tests/build-page.mjs", program], cwd=PLUGIN, check=True)
    turnwire = Turnwire(settings=Settings(data=folder / "data", vault=vault))
    async with serving(turnwire) as server, async_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await driver.chromium.launch(executable_path=find_browser(), args=arguments)
        context = await browser.new_context(viewport=ViewportSize(width=560, height=480), device_scale_factor=2)
        await context.grant_permissions(["local-network-access"], origin=ORIGIN)
        page = await context.new_page()

        async def show(route: Route) -> None:
            await route.fulfill(body="<!doctype html><title>Obsidian</title><body>", content_type="text/html")

        await page.route(f"{ORIGIN}/", show)
        await page.goto(f"{ORIGIN}/")
        await page.add_style_tag(content=THEME + (PLUGIN / "styles.css").read_text())
        await page.add_script_tag(path=program)
        await page.evaluate("([url, agent]) => openPane(url, agent)", [server.url, "vault"])
        await page.get_by_label("Message").fill("When does the rocket launch?")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden(timeout=30_000)
        await expect(page.locator(".turnwire-answer")).to_contain_text("Friday", timeout=30_000)
        await page.get_by_text("steps", exact=False).click()
        session = await context.new_cdp_session(page)
        picture = await session.send("Page.captureScreenshot", {"format": "webp", "quality": 90})
        (PLUGIN / "picture.webp").write_bytes(base64.b64decode(picture["data"]))
        await browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(take(Path(folder)))
