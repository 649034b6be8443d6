"""A tab of a real browser, in the words of who uses the page. It writes down every request and every complaint."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect

PATIENCE_MS = 15_000

expect.set_options(timeout=PATIENCE_MS)


class Tab:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[Request] = []
        self.complaints: list[str] = []
        """What the browser's console says is wrong: an exception, or something that the page's policy forbids."""
        self.expected: tuple[str, ...] = ()
        """How those complaints begin that a test provokes."""
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._listen)
        page.set_default_timeout(PATIENCE_MS)

    def _listen(self, message: ConsoleMessage) -> None:
        # An answer that is an error, or none at all, is the page's to tell; the browser always complains of it.
        known = ("Failed to load resource", *self.expected)
        if message.type in ("error", "warning") and not message.text.startswith(known):
            self.complaints.append(message.text)

    @property
    def strays(self) -> list[str]:
        """Requests to somewhere else."""
        here = urlsplit(self.url).netloc
        return [one.url for one in self.requests if urlsplit(one.url).netloc not in (here, "")]

    def part(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    async def ask(self, message: str) -> None:
        await self.part("composer").fill(message)
        await self.part("send").click()

    @property
    def answer(self) -> Locator:
        """The newest answer's text."""
        return self.part("answer").last

    @property
    def turn(self) -> Locator:
        """The newest turn."""
        return self.part("turn").last

    async def ended(self, outcome: str = "completed") -> None:
        await expect(self.turn).to_have_attribute("data-outcome", outcome)

    async def turn_id(self) -> str:
        found = await self.turn.get_attribute("data-turn-id")
        assert found
        return found


async def new_context(browser: Browser, **options: Any) -> BrowserContext:
    return await browser.new_context(**{"locale": "en-GB", "reduced_motion": "reduce", **options})


@asynccontextmanager
async def tab(
    browser: Browser, url: str, path: str = "/", context: BrowserContext | None = None, **options: Any
) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, or of one that has others. Nothing it loads may come from elsewhere."""
    own = context or await new_context(browser, **options)
    shown = Tab(await own.new_page(), url)
    try:
        await shown.page.goto(url + path)
        yield shown
        assert not shown.strays, shown.strays
        assert not shown.complaints, shown.complaints
    finally:
        if context is None:
            await own.close()
        else:
            await shown.page.close()
