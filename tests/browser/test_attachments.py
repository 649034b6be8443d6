"""Tests of files on the page: chosen, pasted and dropped, shown in the question, and there again after a reload."""

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, expect

from tests.browser.browser_tab import tab
from tests.browser.conftest import Serve
from turnwire import Turn, read_file

# A picture of one pixel, which a browser can draw.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DIGEST = hashlib.sha256(PIXEL).hexdigest()
_DRAWN = "images => images.length > 0 && images.every(image => image.complete && image.naturalWidth === 1)"
_EVENT = """(box, [kind, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], `${kind}.png`, { type: "image/png" }));
  const options = { bubbles: true, cancelable: true, clipboardData: transfer, dataTransfer: transfer };
  box.dispatchEvent(kind === "paste" ? new ClipboardEvent("paste", options) : new DragEvent("drop", options));
}"""


async def describe(turn: Turn) -> AsyncIterator[str]:
    for file in turn.attachments:
        yield f"{file.name} {hashlib.sha256(await read_file(file)).hexdigest()} "
    yield "Seen."


describe.takes_attachments = ["image/*"]  # type: ignore[attr-defined]


async def test_files_are_attached_by_choice_paste_and_drop_and_shown_after_a_reload(
    serve: Serve, browser: Browser
) -> None:
    async with serve(describe) as server, tab(browser, server.url) as page:
        await page.part("attach-input").set_input_files(
            files=[{"name": "chosen.png", "mimeType": "image/png", "buffer": PIXEL}]
        )
        await expect(page.part("pending-file")).to_have_count(1)
        for count, kind in enumerate(("paste", "drop"), start=2):
            await page.part("composer").evaluate(_EVENT, [kind, base64.b64encode(PIXEL).decode()])
            await expect(page.part("pending-file")).to_have_count(count)
        await page.part("pending-file").nth(2).get_by_role("button").click()
        await expect(page.part("pending-file")).to_have_count(2)
        await page.part("send").click()
        await page.ended()
        await expect(page.part("pending-file")).to_have_count(0)
        await expect(page.answer).to_contain_text(f"chosen.png {DIGEST} paste.png {DIGEST} Seen.")
        for _ in range(2):
            shown = page.part("attached-file")
            await expect(shown).to_have_count(2)
            await page.page.wait_for_function(f"({_DRAWN})([...document.querySelectorAll('.asked .attachments img')])")
            source = await shown.nth(0).locator("img").get_attribute("src")
            assert source is not None
            assert source.endswith(f"/files/{DIGEST}")
            await page.page.reload()


async def test_page_offers_no_files_for_an_agent_that_takes_none(serve: Serve, browser: Browser) -> None:
    async def plain(turn: Turn) -> str:
        return "Hello."

    async with serve(plain) as server, tab(browser, server.url) as page:
        await page.ask("Hi")
        await page.ended()
        await expect(page.part("attach")).to_have_count(0)
        await page.part("composer").evaluate(_EVENT, ["paste", base64.b64encode(PIXEL).decode()])
        await expect(page.part("pending-file")).to_have_count(0)


async def test_answer_again_has_the_files_of_the_message(serve: Serve, browser: Browser) -> None:
    async with serve(describe) as server, tab(browser, server.url) as page:
        await page.part("composer").evaluate(_EVENT, ["paste", base64.b64encode(PIXEL).decode()])
        await expect(page.part("pending-file")).to_have_count(1)
        await page.ask("What is it?")
        await page.ended()
        await page.part("retry").click()
        await expect(page.part("version")).to_have_text("2 / 2")
        await page.ended()
        await expect(page.answer).to_contain_text(f"paste.png {DIGEST} Seen.")


async def test_file_dropped_on_the_message_box_is_no_document_too(serve: Serve, browser: Browser, shelf: Path) -> None:
    async with serve(describe, docs=[shelf]) as server, tab(browser, server.url) as page:
        await expect(page.part("upload")).to_be_visible()
        await page.part("composer").evaluate(_EVENT, ["drop", base64.b64encode(PIXEL).decode()])
        await expect(page.part("pending-file")).to_have_count(1)
        await expect(page.part("uploading")).to_have_count(0)


async def test_files_stay_in_the_conversation_that_they_were_chosen_in(serve: Serve, browser: Browser) -> None:
    async with serve(describe) as server, tab(browser, server.url) as page:
        await page.ask("Hello")
        await page.ended()
        await page.part("composer").evaluate(_EVENT, ["paste", base64.b64encode(PIXEL).decode()])
        await expect(page.part("pending-file")).to_have_count(1)
        await page.part("new").click()
        await expect(page.part("welcome")).to_be_visible()
        await expect(page.part("pending-file")).to_have_count(0)
